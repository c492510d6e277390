"""
The thread of an election: with a blocked event loop, with credentials that change, with failures.
"""
import asyncio
import json
import time

import pytest
from aiohttp import web

from kopf._cogs.aiokits.tenures import Tenure
from kopf._cogs.clients.outposts import Outpost
from kopf._cogs.clients.vaults import Vault
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.credentials import ConnectionInfo
from kopf._core.engines import leadership
from tests._cogs.clients.servers import Server


class Leases:
    """The API for one Lease. Only requests with one of the tokens are accepted."""

    def __init__(self):
        self.tokens = {'old', 'new'}
        self.lease = None
        self.version = 0
        self.renewals = 0

    async def reply(self, request):
        if request.headers.get('Authorization', '').removeprefix('Bearer ') not in self.tokens:
            return web.json_response({'kind': 'Status', 'code': 401}, status=401)
        if request.method == 'GET' and self.lease is None:
            return web.json_response({'kind': 'Status', 'code': 404}, status=404)
        if request.method == 'GET':
            return web.json_response(self.lease)
        body = json.loads(await request.read())
        if request.method == 'PUT' and body['metadata']['resourceVersion'] != str(self.version):
            return web.json_response({'kind': 'Status', 'code': 409}, status=409)
        self.version += 1
        self.renewals += 1
        self.lease = {**body, 'metadata': {
            **body['metadata'], 'resourceVersion': str(self.version)}}
        return web.json_response(self.lease)


@pytest.fixture()
def leases():
    return Leases()


@pytest.fixture()
def url(leases):
    server = Server()
    server.script(leases.reply)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture()
def vault(url):
    return Vault({'first': ConnectionInfo(server=url, token='old')})


class Election:
    """A candidacy in a thread, and the number of changes it has told of."""

    def __init__(self, vault):
        settings = OperatorSettings()
        settings.leadership.lease_duration = 3
        settings.leadership.renew_deadline = 1.0
        settings.leadership.retry_period = 0.1
        self.changes = 0
        self.tenure = Tenure()
        self.outpost = Outpost(
            name='election', settings=settings, vault=vault, on_change=self._note,
            on_end=self.tenure.end, assign=lambda client: leadership.Candidacy(
                client, settings=settings.leadership, tenure=self.tenure,
                on_change=self.outpost.notify, identity='me', namespace='ns', name='lease'))

    async def stop(self):
        await self.outpost.stop(release_by=asyncio.get_running_loop().time() + 5)

    def _note(self):
        self.changes += 1

    async def wait_until(self, predicate):
        async with asyncio.timeout(30):
            while not predicate():
                await asyncio.sleep(0.01)


@pytest.fixture()
async def election(vault):
    election = Election(vault)
    election.outpost.start()
    yield election
    await election.stop()


async def test_changes_are_told_in_the_event_loop_of_the_operator(election, leases):
    await election.wait_until(lambda: election.changes == 1)
    assert election.tenure.term == 1
    assert leases.lease['spec']['holderIdentity'] == 'me'


async def test_lease_is_renewed_while_the_event_loop_is_blocked(election, leases):
    await election.wait_until(lambda: election.tenure.term)
    time.sleep(1.5)
    assert election.tenure.term == 1
    assert leases.renewals > 5


async def test_lease_is_released_at_the_end(vault, leases):
    election = Election(vault)
    election.outpost.start()
    await election.wait_until(lambda: election.tenure.term)
    await election.stop()
    assert leases.lease['spec']['holderIdentity'] == ''
    assert election.tenure.term is None


async def test_lease_is_kept_at_the_end_if_it_is_not_to_be_released(vault, leases):
    election = Election(vault)
    election.outpost.start()
    await election.wait_until(lambda: election.tenure.term)
    await election.outpost.stop(release_by=None)
    assert leases.lease['spec']['holderIdentity'] == 'me'


async def test_rejected_credentials_are_replaced_by_a_login_of_the_operator(
        election, vault, url, leases):
    logins = []

    async def log_in():
        logins.append(1)
        return {'second': ConnectionInfo(server=url, token='new')}

    vault.login = log_in
    await election.wait_until(lambda: election.tenure.term)
    leases.tokens.remove('old')
    renewals = leases.renewals
    await election.wait_until(lambda: leases.renewals > renewals + 3)
    assert election.tenure.term == 1
    assert logins == [1]


async def test_tokens_in_files_are_read_again(url, leases, tmp_path):
    path = tmp_path / 'token'
    path.write_text('old')
    election = Election(Vault({'': ConnectionInfo(server=url, token_path=str(path))}))
    election.outpost.start()
    await election.wait_until(lambda: election.tenure.term)
    path.write_text('new')
    leases.tokens.remove('old')
    renewals = leases.renewals
    await election.wait_until(lambda: leases.renewals > renewals + 3)
    assert election.tenure.term == 1
    await election.stop()


async def test_failure_of_the_thread_ends_the_term_and_is_raised(vault, monkeypatch):
    async def fail(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(leadership.Candidacy, 'run', fail)
    election = Election(vault)
    election.outpost.start()
    await election.wait_until(lambda: election.changes)
    assert election.tenure.term is None
    with pytest.raises(RuntimeError, match='a bug'):
        election.outpost.check()
    await election.stop()
