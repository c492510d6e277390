"""
The leadership of an operator: what it refuses, and what it costs where it is not used.
"""
import subprocess
import sys

import pytest

from kopf._cogs.configs.configuration import OperatorSettings, SettingsError
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo
from kopf._core.reactor.roles import leadership


@pytest.fixture()
def settings():
    settings = OperatorSettings()
    settings.leadership.name = 'lease'
    return settings


def test_without_a_name_nothing_of_it_is_even_imported():
    program = '''if True:
        import asyncio, sys, kopf, kopf.cli
        from kopf._cogs.clients.vaults import Vault
        stopped = asyncio.Event()
        stopped.set()
        asyncio.run(kopf.operator(
            registry=kopf.OperatorRegistry(), clusterwide=True, standalone=True,
            stop_flag=stopped, vault=Vault({'': kopf.ConnectionInfo(server='http://127.0.0.1')})))
        print([name for name in sys.modules if 'leadership' in name])
    '''
    output = subprocess.check_output([sys.executable, '-c', program], text=True)
    assert output.strip() == '[]'


def test_defaults_are_those_of_kubernetes_itself(settings):
    assert (settings.leadership.lease_duration, settings.leadership.renew_deadline,
            settings.leadership.retry_period) == (15, 10, 2)
    leadership.verify(settings)


@pytest.mark.parametrize(('duration', 'deadline', 'period'), [
    (10, 10, 2), (15, 2.4, 2), (15, 10, 0), (15, 10, -1), (10.5, 10, 2)])
def test_durations_have_to_fit(settings, duration, deadline, period):
    settings.leadership.lease_duration = duration
    settings.leadership.renew_deadline = deadline
    settings.leadership.retry_period = period
    with pytest.raises(SettingsError, match='lease_duration'):
        leadership.verify(settings)


@pytest.mark.parametrize(('name', 'value'), [
    ('mandatory', True), ('priority', 1), ('name', 'other')])
def test_peering_at_the_same_time_is_refused(settings, name, value):
    setattr(settings.peering, name, value)
    with pytest.raises(SettingsError, match='omit either'):
        leadership.verify(settings)
    settings.peering.standalone = True
    leadership.verify(settings)


def test_namespace_is_that_of_the_settings_or_of_the_credentials(settings):
    anywhere = ConnectionInfo(server='https://127.0.0.1')
    somewhere = ConnectionInfo(server='https://127.0.0.1', default_namespace='there')
    assert leadership.find_namespace(settings, [anywhere, somewhere]) == 'there'
    settings.leadership.namespace = 'here'
    assert leadership.find_namespace(settings, [anywhere, somewhere]) == 'here'


def test_unknown_namespace_is_an_error(settings):
    with pytest.raises(SettingsError, match=r'settings\.leadership\.namespace'):
        leadership.find_namespace(settings, [ConnectionInfo(server='https://127.0.0.1')])


def test_sessions_of_the_operators_event_loop_are_refused(settings):
    settings.leadership.namespace = 'here'
    session = AiohttpSession(server='https://127.0.0.1', aiohttp_session=None)
    with pytest.raises(SettingsError, match=r'Return kopf\.ConnectionInfo'):
        leadership.find_namespace(settings, [session])
