"""
Last-handled states of kinds with several versions: they say their version, and are converted.
"""
import pytest

from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.structs.bodies import Body
from kopf._cogs.structs.patches import Patch
from kopf._core.actions import decisions, versions
from kopf._core.intents.causes import Reason

KEY = 'kopf.zalando.org/last-handled-configuration'


class Doubling:
    """In v2, the number is twice the one of v1. Nothing is known of v3."""

    def complete(self, obj):
        return obj

    def convert_essence(self, old, version, *, current, to):
        if version not in ('v1', 'v2'):
            raise ValueError("unknown")
        return {'spec': {'n': old['spec']['n'] * (2 if to == 'v2' else 0.5)}}


@pytest.fixture()
def settings():
    return OperatorSettings()


def make(n, version='v2', **meta):
    return {'apiVersion': f'example.com/{version}', 'kind': 'Thing',
            'metadata': {'name': 'one', **meta}, 'spec': {'n': n}}


def store(settings, raw, converter):
    patch = Patch()
    settings.persistence.diffbase_storage.store(body=Body(raw), patch=patch, essence=versions.mark(
        {'spec': raw['spec']}, body=Body(raw), converter=converter))
    return patch['metadata']['annotations'][KEY]


def look(settings, raw, converter):
    return decisions.look(raw, settings=settings, extra_fields=(), converter=converter)


def test_without_conversions_nothing_says_a_version(settings):
    assert store(settings, make(1), None) == '{"spec":{"n":1}}\n'


def test_a_state_of_the_same_version_is_taken_as_it_is(settings):
    stored = store(settings, make(1), Doubling())
    assert stored == '{"spec":{"n":1},"kopf.dev/version":"v2"}\n'
    view = look(settings, make(1, annotations={KEY: stored}), Doubling())
    assert (view.old, view.essence, view.is_outdated) == (
        {'spec': {'n': 1}}, {'spec': {'n': 1}}, False)


@pytest.mark.parametrize(('n', 'reason'), [(2, Reason.NOOP), (3, Reason.UPDATE)])
def test_a_state_of_another_version_is_converted(settings, n, reason):
    stored = store(settings, make(1, 'v1'), Doubling())
    view = look(settings, make(n, annotations={KEY: stored}), Doubling())
    assert (view.old, view.is_outdated) == ({'spec': {'n': 2}}, True)
    assert decisions.detect(view, initial=False)[0] == reason


def test_what_cannot_be_converted_is_a_change(settings):
    stored = store(settings, make(1, 'v3'), Doubling())
    view = look(settings, make(1, annotations={KEY: stored}), Doubling())
    assert (view.old, view.is_outdated) == ({'spec': {'n': 1}}, True)


def test_an_operator_without_conversions_ignores_the_version(settings):
    stored = store(settings, make(1, 'v1'), Doubling())
    view = look(settings, make(1, 'v1', annotations={KEY: stored}), None)
    assert (view.old, view.is_outdated) == ({'spec': {'n': 1}}, False)
    assert decisions.fetch_old(view.body, settings)[0] == {'spec': {'n': 1}}


@pytest.mark.parametrize(('entries', 'old', 'is_outdated'), [
    ([], 1, False),
    ([{'apiVersion': 'example.com/v1', 'fieldsV1': {'f:spec': {}}}], 1, False),
    ([{'apiVersion': 'example.com/v1', 'fieldsV1': {'f:metadata': {'f:annotations': {
        f'f:{KEY}': {}}}}}], 2, True),
    ([{'apiVersion': 'example.com/v2', 'fieldsV1': {'f:metadata': {'f:annotations': {
        f'f:{KEY}': {}}}}}], 1, False),
])
def test_a_state_from_before_conversions_has_the_version_of_its_writer(
        settings, entries, old, is_outdated):
    raw = make(2, annotations={KEY: '{"spec":{"n":1}}\n'}, managedFields=entries)
    view = look(settings, raw, Doubling())
    assert (view.old, view.is_outdated) == ({'spec': {'n': old}}, is_outdated)

