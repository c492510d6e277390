import asyncio
import contextlib
import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal, Optional, Union

import pytest
import typing_extensions

import kopf
from kopf import testing
from kopf._cogs.aiokits import clocks
from kopf._core.actions import execution
from kopf._core.engines.admission import reviewing, webhooks
from kopf._kits.typed import binding, kinds
from tests.crds import make_crd


class Engine(enum.StrEnum):
    MYSQL = 'MySQL'
    POSTGRES = 'Postgres'


@dataclasses.dataclass(frozen=True)
class User:
    name: str
    is_admin: bool = False


@dataclasses.dataclass(frozen=True)
class DatabaseSpec:
    engine: Engine
    replicas: int = 1
    users: Annotated[list[User], kopf.ListMap('name')] = dataclasses.field(default_factory=list)
    max_connections: int | None = None
    mode: Literal['fast', 'safe'] | None = None


@dataclasses.dataclass(frozen=True)
class DatabaseStatus:
    phase: str


@kopf.crd('example.com', 'v1', plural='databases')
class Database:
    spec: DatabaseSpec
    status: DatabaseStatus | None = None


@kopf.crd('example.com', 'v1', plural='others')
class Other:
    spec: User


LOOSE = make_crd('Database', 'databases')
"""An old definition, which accepts everything."""


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    own = {}
    for declared in map(kinds.get_declaration, [Database, Other]):  # other modules have such ones
        own[declared.name] = declared.family
        for version in [*declared.family]:
            monkeypatch.delitem(declared.family, version)
        monkeypatch.setitem(declared.family, 'v1', declared)
    monkeypatch.setattr(kinds, '_declared', own)


def make(name, **spec):
    return {'apiVersion': 'example.com/v1', 'kind': 'Database',
            'metadata': {'name': name, 'namespace': 'default'}, 'spec': spec}


@contextlib.asynccontextmanager
async def running(registry, *objects, loose=False):
    async with testing.open_api('sandbox') as api:
        if loose:
            await api.client.load(LOOSE)
        for obj in objects:
            await api.client.create(obj)
        async with api.operator(registry=registry) as operator:
            yield api, operator


async def settle():
    await asyncio.sleep(100)  # of virtual time: there would be retries


def count_held(operator):
    return operator.text.count('The object does not fit the types of ')


@testing.virtual_time
async def test_annotated_arguments_are_given_as_these_types():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry)
    def create_fn(spec: DatabaseSpec, status: DatabaseStatus | None, name, old, **_):
        seen.append((spec, status, name, old))

    @kopf.on.update(Database, registry=registry, field='spec.replicas')
    async def update_fn(spec: 'DatabaseSpec', old: int, new: int, body: Database, patch, **_):
        seen.append((spec.replicas, old, new, body.spec.engine, body.status))
        patch.status['phase'] = 'changed'

    @kopf.on.field(Database, registry=registry, field='spec.users')
    async def field_fn(old: list[User] | None, new: list[User], status: DatabaseStatus | None, **_):
        seen.append((old, new, status))

    async with running(registry) as (api, _):
        await api.client.create(make(
            'one', engine='MySQL', maxConnections=5, users=[{'name': 'a', 'isAdmin': True}]))
        await testing.wait_for(lambda: len(seen) == 2)
        assert seen == [
            (DatabaseSpec(Engine.MYSQL, 1, [User('a', True)], 5), None, 'one', None),
            (None, [User('a', True)], None)]
        seen.clear()
        await api.client.patch('databases', 'one', {'spec': {'replicas': 3}})
        await testing.wait_for(lambda: seen)
        assert seen == [(3, 1, 3, Engine.MYSQL, None)]
        await settle()
        await api.client.patch('databases', 'one', {'spec': {'users': [{'name': 'b'}]}})
        await testing.wait_for(lambda: len(seen) == 2)
        assert seen[1] == ([User('a', True)], [User('b')], DatabaseStatus('changed'))


@testing.virtual_time
async def test_a_body_is_decoded_once_for_all_handlers_and_not_at_all_if_nobody_asks(monkeypatch):
    registry, decoded = kopf.OperatorRegistry(), []

    @dataclasses.dataclass(frozen=True)
    class Spec:
        replicas: int = 1

        def __post_init__(self):
            decoded.append(self.replicas)

    @kopf.crd('example.com', 'v1', plural='databases')
    class Counted:
        spec: Spec

    def typed(spec: Spec, **_):
        pass

    def untyped(spec, **_):
        pass

    for n in range(3):
        kopf.on.create(Counted, id=f'typed{n}', registry=registry)(typed)
        kopf.on.update(Counted, id=f'untyped{n}', registry=registry)(untyped)
    decoded.clear()  # of the declaration
    async with running(registry, make('one', replicas=5), loose=True) as (api, operator):
        await settle()
        assert decoded == [5]
        await api.client.patch('databases', 'one', {'spec': {'replicas': 6}})
        await settle()
        assert decoded == [5]
        assert operator.text.count("Updating is processed: 3 succeeded") == 1


def test_aliases_of_types_can_include_none_and_misfits():
    maybe = typing_extensions.TypeAliasType('maybe', DatabaseSpec | None)
    live = typing_extensions.TypeAliasType('live', kopf.Live[DatabaseSpec])

    def create_fn(spec: maybe | kopf.Misfit, **_):
        pass

    async def monitor_fn(spec: live, **_):
        pass

    registry = kopf.OperatorRegistry()
    kopf.on.create(Database, registry=registry)(create_fn)
    kopf.daemon(Database, registry=registry)(monitor_fn)
    [created], [monitored] = registry._changing, registry._spawning
    assert created.arguments['spec'].takes_misfits
    assert monitored.arguments.keys() == {'spec'}


@testing.virtual_time
async def test_other_annotations_mean_what_they_always_mean():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry)
    def create_fn(
            spec: kopf.Spec, body: kopf.Body, old: kopf.BodyEssence | None,
            new: dict[str, Any], status: Any, meta: 'NotImported', **_: object):  # noqa: F821
        seen.append((spec['engine'], body.spec, old, new['spec'], status))

    async with running(registry) as (api, _):
        await api.client.create(make('one', engine='MySQL'))
        await testing.wait_for(lambda: seen)
    spec = {'engine': 'MySQL', 'replicas': 1, 'users': []}
    assert seen == [('MySQL', spec, None, spec, {})]


@testing.virtual_time
async def test_a_misfit_is_held_until_it_changes():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry)
    def create_fn(spec: DatabaseSpec, **_):
        seen.append(spec)

    @kopf.on.create(Database, registry=registry)
    def other_fn(spec: DatabaseSpec, **_):
        pass

    wrong = make('one', engine='Oracle', replicas='3', users=[{'name': 'a'}, {'isAdmin': 1}])
    async with running(registry, wrong, loose=True) as (api, operator):
        await operator.wait_log("does not fit")
        await settle()
        [line] = [line for line in operator.log if 'does not fit' in line]
        assert line.endswith(
            "The object does not fit the types of 'test_a_misfit_is_held_until_it_changes.<locals>."
            "create_fn', 'test_a_misfit_is_held_until_it_changes.<locals>.other_fn': "
            "spec.engine: is none of 'MySQL', 'Postgres'; "
            "spec.replicas: is a string, not an integer; "
            "spec.users[1].isAdmin: is a number, not a boolean; "
            "spec.users[1].name: is absent. They are called when it does.")
        obj = await api.client.get('databases', 'one')
        assert not obj['metadata'].get('annotations')  # neither a progress nor a last state
        events = await api.client.list('events')
        assert [event['type'] for event in events] == ['Warning']

        await api.client.patch('databases', 'one', {'spec': {'replicas': 2}})
        await testing.wait_for(lambda: count_held(operator) == 2)
        assert not seen
        await api.client.patch('databases', 'one', {'spec': {'engine': 'MySQL', 'users': []}})
        await testing.wait_for(lambda: seen)
        await settle()
    assert seen == [DatabaseSpec(Engine.MYSQL, 2)]


@testing.virtual_time
async def test_a_misfit_is_completed_by_a_later_version_and_lost_by_none():
    """The types of a later version fit; before that, a restart and an update change nothing."""
    registry, later, seen = kopf.OperatorRegistry(), kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry, id='fn')
    @kopf.on.resume(Database, registry=registry, id='fn')
    @kopf.on.update(Database, registry=registry, id='fn')
    def fn(spec: DatabaseSpec, reason, **_):
        seen.append(reason)

    @kopf.on.create(Database, registry=later, id='fn')
    @kopf.on.resume(Database, registry=later, id='fn')
    @kopf.on.update(Database, registry=later, id='fn')
    def later_fn(spec, reason, name, diff, **_):
        seen.append((name, reason, spec['engine']))

    async with running(registry, make('old', engine='MySQL'), loose=True) as (api, operator):
        await testing.wait_for(lambda: seen)
        await settle()
        await api.client.patch('databases', 'old', {'spec': {'engine': 'Oracle'}})
        await api.client.create(make('new', engine='DB2'))
        await testing.wait_for(lambda: count_held(operator) == 2)
        await operator.stop()
        async with api.operator(registry=registry) as again:
            await testing.wait_for(lambda: count_held(again) == 2)
            await settle()
        assert seen == ['create']
        async with api.operator(registry=later):
            await testing.wait_for(lambda: len(seen) == 3)
            await settle()
    assert sorted(seen[1:]) == [('new', 'create', 'DB2'), ('old', 'update', 'Oracle')]


@testing.virtual_time
async def test_a_misfit_is_not_deleted_without_its_handler():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.delete(Database, registry=registry)
    def delete_fn(spec: DatabaseSpec, **_):
        seen.append(spec)

    async with running(registry, make('one', engine='Oracle'), loose=True) as (api, operator):
        await api.client.wait('databases', 'one', lambda obj: obj['metadata']['finalizers'])
        await api.client.delete('databases', 'one')
        await operator.wait_log("does not fit")
        await settle()
        assert await api.client.get('databases', 'one')
        await api.client.patch('databases', 'one', {'spec': {'engine': 'MySQL'}})
        await api.client.wait_gone('databases', 'one')
    assert seen == [DatabaseSpec(Engine.MYSQL)]


@testing.virtual_time
async def test_handlers_can_take_misfits():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.delete(Database, registry=registry)
    def delete_fn(spec: DatabaseSpec | kopf.Misfit, **_):
        seen.append(spec)

    async with running(registry, make('one', engine='Oracle'), loose=True) as (api, _):
        await api.client.wait('databases', 'one', lambda obj: obj['metadata']['finalizers'])
        await api.client.delete('databases', 'one')
        await api.client.wait_gone('databases', 'one')
    [misfit] = seen
    assert isinstance(misfit, kopf.Misfit)
    assert misfit.raw == {'engine': 'Oracle'}
    assert misfit.reasons == ("spec.engine: is none of 'MySQL', 'Postgres'",)


@testing.virtual_time
async def test_the_finished_handlers_of_a_cycle_are_kept_over_a_misfit():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry)
    def first_fn(spec: DatabaseSpec, **_):
        seen.append('first')

    @kopf.on.create(Database, registry=registry)
    def second_fn(spec: DatabaseSpec, retry, **_):
        if not retry:
            raise kopf.TemporaryError("wait", delay=10)
        seen.append(f'second {spec.engine}')

    async with running(registry, make('one', engine='MySQL'), loose=True) as (api, operator):
        await operator.wait_log("failed temporarily")
        await api.client.patch('databases', 'one', {'spec': {'engine': 'Oracle'}})
        await operator.wait_log("does not fit")
        await settle()
        assert seen == ['first']
        await api.client.patch('databases', 'one', {'spec': {'engine': 'Postgres'}})
        await testing.wait_for(lambda: 'second Postgres' in seen)
        await settle()
    assert seen == ['first', 'second Postgres']


@testing.virtual_time
async def test_a_former_state_that_does_not_fit_is_told_as_such():
    registry, later, seen = kopf.OperatorRegistry(), kopf.OperatorRegistry(), []

    @kopf.on.create(Database, registry=registry)
    def create_fn(**_):
        seen.append('created')

    @kopf.on.update(Database, registry=later, field='spec.engine')
    def strict_fn(old: Engine, new: Engine, **_):
        seen.append(old)

    async with running(registry, make('one', engine='Oracle'), loose=True) as (api, operator):
        await testing.wait_for(lambda: seen)
        await settle()
        await operator.stop()
        async with api.operator(registry=later) as again:
            await api.client.patch('databases', 'one', {'spec': {'engine': 'MySQL'}})
            await again.wait_log(
                r"spec.engine: is none of 'MySQL', 'Postgres' \(in `old`, .* add kopf.Misfit to")
    assert seen == ['created']


@testing.virtual_time
async def test_other_handlers_leave_a_misfit_out_until_it_fits():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.timer(Database, registry=registry, interval=10, retries=2)
    def timer_fn(spec: DatabaseSpec, retry, **_):
        seen.append(('timer', retry))

    @kopf.reconcile(Database, registry=registry, retries=2)
    def reconcile_fn(spec: DatabaseSpec, **_):
        seen.append(('reconcile', spec.engine.value))

    @kopf.on.event(Database, registry=registry)
    def event_fn(spec: DatabaseSpec, **_):
        seen.append('event')

    @kopf.index(Database, registry=registry, id='engines')
    def engines(spec: DatabaseSpec, name, **_):
        return {name: spec.engine.value}

    @kopf.timer(Other, registry=registry, interval=1)
    def look(engines: kopf.Index[str, str], memo, **_):
        memo.known = seen.append(('known', sorted(engines)))

    other = {'apiVersion': 'example.com/v1', 'kind': 'Other', 'metadata': {
        'name': 'any', 'namespace': 'default'}, 'spec': {'name': 'a'}}

    async with running(registry, make('one', engine='Oracle'), loose=True) as (api, operator):
        await api.client.create(other)
        await settle()
        assert {*map(str, seen)} == {"('known', [])"}
        for handler in ('timer_fn', 'reconcile_fn', 'event_fn', 'engines'):
            assert f"{handler}' is not called: the object does not fit its types: spec" in (
                operator.text)
        await api.client.patch('databases', 'one', {'spec': {'engine': 'MySQL'}})
        await settle()
        assert {*map(str, seen)} == {
            "('known', [])", "('timer', 0)", "('reconcile', 'MySQL')", 'event',
            "('known', ['one'])"}

        await api.client.patch('databases', 'one', {'spec': {'engine': 'Oracle'}})
        await settle()
        seen.clear()
        await settle()
        assert {*map(str, seen)} == {"('known', [])"}


@testing.virtual_time
async def test_a_status_that_does_not_fit_any_more_holds_the_next_handler():
    registry, seen, going = kopf.OperatorRegistry(), [], asyncio.Event()

    @kopf.on.create(Database, registry=registry)
    async def first_fn(**_):
        seen.append('first')
        await going.wait()

    @kopf.on.create(Database, registry=registry)
    async def second_fn(status: DatabaseStatus | None, **_):
        seen.append(status)

    async with running(registry, make('one', engine='MySQL'), loose=True) as (api, operator):
        await testing.wait_for(lambda: seen)
        await api.client.patch(
            'databases', 'one', {'status': {'phase': 1}}, subresource='status')
        await asyncio.sleep(1)
        going.set()
        await operator.wait_log("does not fit the types of .* status.phase: is a number")
        await settle()
        assert seen == ['first']
        obj = await api.client.get('databases', 'one')
        assert 'does not fit' not in str(obj['metadata'])  # it was no attempt
        await api.client.patch(
            'databases', 'one', {'status': {'phase': 'up'}}, subresource='status')
        await testing.wait_for(lambda: len(seen) == 2)
    assert seen == ['first', DatabaseStatus('up')]


@testing.virtual_time
async def test_misfits_are_explained():
    registry = kopf.OperatorRegistry()
    kopf.on.create(Database, registry=registry, id='held')(typed)
    kopf.timer(Database, registry=registry, interval=1, id='timer')(typed)
    body = {**make('one', engine='Oracle'), 'metadata': {'name': 'one', 'uid': 'u'}}
    found = testing.explain(body, registry=registry, resource=kopf.Resource(
        'example.com', 'v1', 'databases', kind='Database', namespaced=True))
    text = '\n'.join(found.describe())
    assert "nothing is done: The object does not fit the types of 'held': spec.engine: is" in text
    assert "the object does not fit its types: spec.engine: is none of" in text


def typed(spec: DatabaseSpec, **_):
    pass


@testing.virtual_time
async def test_arguments_that_are_never_given_fail_as_always():
    registry = kopf.OperatorRegistry()

    @kopf.on.event(Database, registry=registry)
    def event_fn(old: Database, **_):
        pass

    async with running(registry, make('one', engine='MySQL'), loose=True) as (_, operator):
        await operator.wait_log("missing 1 required positional argument: 'old'")


@testing.virtual_time
async def test_elements_of_indices_are_what_typed_handlers_return():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.index(Database, registry=registry, id='by_engine')
    def by_engine(spec: DatabaseSpec, **_):
        return {spec.engine: spec}

    @kopf.on.create(Database, registry=registry)
    def create_fn(by_engine: kopf.Index[Engine, DatabaseSpec], **_):
        seen.extend(by_engine[Engine.MYSQL])

    async with running(registry, make('one', engine='MySQL'), loose=True):
        await testing.wait_for(lambda: seen)
    assert seen == [DatabaseSpec(Engine.MYSQL)]


@testing.virtual_time
async def test_functions_that_are_about_the_handled_object_know_it_though_its_body_is_typed():
    registry, seen = kopf.OperatorRegistry(), []

    async def use(patch):
        child = {'metadata': {}}
        kopf.adopt(child)
        seen.append((child['metadata']['ownerReferences'][0]['name'],
                     await kopf.get('configmaps', 'absent')))
        kopf.set_condition(patch, 'Ready', True, 'Fine')

    @kopf.on.create(Database, registry=registry)
    async def create_fn(body: Database, patch, **_):
        await use(patch)

    @kopf.daemon(Database, registry=registry)
    async def daemon_fn(body: kopf.Live[Database], patch, **_):
        await use(patch)

    async with running(registry, make('one', engine='MySQL'), loose=True) as (api, _):
        await settle()
        obj = await api.client.get('databases', 'one')
    assert seen == [('one', None)] * 2
    assert [item['observedGeneration'] for item in obj['status']['conditions']] == [1]


@testing.virtual_time
async def test_daemons_ask_for_the_newest_state():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.daemon(Database, registry=registry)
    async def daemon_fn(spec: kopf.Live[DatabaseSpec], stopped, **_):
        while not stopped:
            try:
                if not seen or seen[-1] != spec.value.replicas:
                    seen.append(spec.value.replicas)
            except kopf.MisfitError as e:
                seen.append(str(e))
                return
            await stopped.wait(1)

    async with running(registry, make('one', engine='MySQL'), loose=True) as (api, _):
        await testing.wait_for(lambda: seen == [1])
        await api.client.patch('databases', 'one', {'spec': {'replicas': 2}})
        await testing.wait_for(lambda: seen == [1, 2])
        await api.client.patch('databases', 'one', {'spec': {'replicas': 'many'}})
        await testing.wait_for(lambda: len(seen) == 3)
    assert seen[2] == 'spec.replicas: is a string, not an integer'


def make_reviewer(registry):
    hooks = list(registry._webhooks)
    reviewer = reviewing.Reviewer(
        directory=webhooks.Directory(hooks),
        context=execution.Context(
            settings=kopf.OperatorSettings(), clock=clocks.Clock(), indices={}),
        find=lambda resource: (resource, hooks), get_memo=lambda resource, uid: kopf.Memo())

    async def review(**spec):
        answer = await reviewer({
            'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview',
            'request': {
                'uid': '1', 'operation': 'CREATE', 'object': make('one', **spec), 'oldObject': None,
                'kind': {'group': 'example.com', 'version': 'v1', 'kind': 'Database'},
                'resource': {'group': 'example.com', 'version': 'v1', 'resource': 'databases'},
                'userInfo': {}, 'dryRun': False}})
        return answer['response']

    return review


async def test_admission_handlers_of_a_field_get_the_whole_objects():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.validate(Database, registry=registry, field='spec.replicas')
    async def validate_fn(old: Database | None, new: Database, **_):
        seen.append((old, new.spec.replicas))

    assert (await make_reviewer(registry)(engine='MySQL', replicas=3))['allowed']
    assert seen == [(None, 3)]
    with pytest.raises(TypeError, match="has no field 'spec.size'"):
        kopf.on.validate(Database, registry=registry, field='spec.size')(validate_fn)


@pytest.mark.parametrize('status', [None, {}, {'conditions': []}, {'note': 'x'}])
async def test_a_status_is_none_until_it_has_all_that_is_required(status):
    @dataclasses.dataclass
    class Ready:
        ready: int
        note: str = ''

    @kopf.crd('example.com', 'v1', plural='readies')
    @dataclasses.dataclass
    class Thing:
        spec: dict[str, int]
        status: Ready | None = None

    raw = {'apiVersion': 'example.com/v1', 'kind': 'Thing', 'metadata': {'name': 'x'}, 'spec': {}}
    raw |= {} if status is None else {'status': status}
    assert binding.make_decoder(Thing, ('status',))(status) is None
    assert binding.make_decoder(Thing, ())(raw).status is None
    raw['status'] = {'ready': 1, **(status or {})}
    assert binding.make_decoder(Thing, ())(raw).status.ready == 1
    assert binding.make_decoder(Thing, ('status',))(raw['status']).ready == 1
    raw['status'] = {'ready': 'x'}
    assert binding.make_decoder(Thing, ())(raw).reasons == (
        "status.ready: is a string, not an integer",)


async def test_admission_handlers_refuse_misfits_with_all_reasons():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.validate(Database, registry=registry)
    async def validate_fn(spec: DatabaseSpec, new: Database, **_):
        seen.append((spec.engine, new.spec.engine))

    review = make_reviewer(registry)
    assert (await review(engine='MySQL'))['allowed']
    assert seen == [(Engine.MYSQL, Engine.MYSQL)]
    assert (await review(engine='Oracle', replicas='a'))['status'] == {
        'code': 422, 'message': "spec.engine: is none of 'MySQL', 'Postgres'; "
                                "spec.replicas: is a string, not an integer"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replica:
    name: str
    note: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RichStatus:
    ready_replicas: int = 0
    message: str | None = None
    first: Replica | None = None
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    free: dict[str, Any] = dataclasses.field(default_factory=dict)
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


def declare_rich():
    @kopf.crd('example.com', 'v1', plural='databases', kind='Database')
    class RichDatabase:
        spec: DatabaseSpec
        status: RichStatus = RichStatus()

    return RichDatabase


RichDatabase = declare_rich()


def make_condition(type, status, reason, hour):
    return kopf.Condition(
        type=type, status=status, reason=reason, message='',
        last_transition_time=datetime.datetime(2026, 1, 1, hour, tzinfo=datetime.UTC))


@testing.virtual_time
async def test_a_typed_status_is_written_field_by_field():
    registry = kopf.OperatorRegistry()

    @kopf.on.create(RichDatabase, registry=registry)
    def create_fn(patch, **_):
        patch.status = RichStatus(
            ready_replicas=1, message='up', first=Replica(name='a', note='b'),
            sizes={'a': 1, 'b': 2}, free={'a': {'b': 1, 'c': 2}, 'old': 1}, conditions=[
                make_condition('Ready', 'True', 'Up', 1), make_condition('Old', 'True', 'Up', 1)])
        patch.status['other'] = 'kept'

    @kopf.on.update(RichDatabase, registry=registry)
    def update_fn(patch: kopf.Patch, **_):
        patch.status = RichStatus(
            ready_replicas=2, first=Replica(name='c'), sizes={'b': 3}, free={'a': {'b': 3}},
            conditions=[
                make_condition('Ready', 'True', 'Same', 2),
                make_condition('New', 'False', 'Why', 2)])

    async with running(registry, make('one', engine='MySQL'), loose=True) as (api, _):
        obj = await api.client.wait('databases', 'one', lambda obj: obj.get('status'))
        first = {'type': 'Ready', 'status': 'True', 'reason': 'Up', 'message': '',
                 'lastTransitionTime': '2026-01-01T01:00:00Z'}
        assert obj['status'] == {
            'readyReplicas': 1, 'message': 'up', 'first': {'name': 'a', 'note': 'b'},
            'sizes': {'a': 1, 'b': 2}, 'free': {'a': {'b': 1, 'c': 2}, 'old': 1}, 'other': 'kept',
            'conditions': [first, {**first, 'type': 'Old'}]}
        await settle()
        await api.client.patch('databases', 'one', {'spec': {'replicas': 3}})
        obj = await api.client.wait(
            'databases', 'one', lambda obj: obj['status']['readyReplicas'] == 2)
        assert obj['status'] == {
            'readyReplicas': 2, 'first': {'name': 'c'}, 'sizes': {'b': 3},
            'free': {'a': {'b': 3}}, 'other': 'kept',
            'conditions': [
                {**first, 'reason': 'Same'}, {**first, 'type': 'Old'},
                {**first, 'type': 'New', 'status': 'False', 'reason': 'Why',
                 'lastTransitionTime': '2026-01-01T02:00:00Z'}]}


@testing.virtual_time
async def test_only_a_value_of_the_class_is_a_status():
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.create(RichDatabase, registry=registry)
    def create_fn(patch, **_):
        for value in [{}, DatabaseStatus('x'), None]:
            with pytest.raises(TypeError, match=r'takes a value of RichStatus') as info:
                patch.status = value
            seen.append(str(info.value))

    async with running(registry, make('one', engine='MySQL'), loose=True):
        await testing.wait_for(lambda: len(seen) == 3)


@pytest.mark.parametrize('patch', [kopf.Patch(), kopf.Patch({}, body=kopf.Body({}))])
def test_without_a_class_the_status_cannot_be_assigned(patch):
    with pytest.raises(AttributeError, match='patch.status cannot be assigned'):
        patch.status = RichStatus()


def declare(decorator, annotation, name='spec', **options):
    def typed_fn(spec=None, status=None, body=None, old=None, new=None, **_):
        pass
    typed_fn.__annotations__[name] = annotation
    decorator(Database, registry=kopf.OperatorRegistry(), **options)(typed_fn)


@pytest.mark.parametrize(('decorator', 'annotation', 'options', 'message'), [
    (kopf.on.create, User, {}, r'typed_fn\(spec: …\) .*: in Database, spec is DatabaseSpec\.'),
    (kopf.on.create, int, {}, 'spec is DatabaseSpec'),
    (kopf.on.create, DatabaseSpec | int, {}, 'spec is DatabaseSpec'),
    (kopf.on.create, 'Unknown', {}, "the annotation 'Unknown' cannot be evaluated"),
    (kopf.on.create, DatabaseSpec, {'name': 'status'}, 'status is DatabaseStatus'),
    (kopf.on.create, Other, {'name': 'body'}, 'the object is Database'),
    (kopf.on.update, str, {'name': 'old', 'field': 'spec.replicas'}, 'spec.replicas is int'),
    (kopf.on.update, list[str], {'name': 'new', 'field': 'spec.users'}, 'spec.users is list'),
    (kopf.on.update, str, {'name': 'new', 'field': 'spec.mode'}, 'spec.mode is enum'),
    (kopf.on.update, int, {'name': 'new', 'field': 'metadata.labels'}, 'labels is not typed'),
    (kopf.daemon, DatabaseSpec, {}, r'Write kopf.Live\[…\]'),
    (kopf.timer, kopf.Live[DatabaseSpec], {}, 'cannot be live'),
])
def test_annotations_that_are_none_of_the_class_are_errors_at_import(
        decorator, annotation, options, message):
    with pytest.raises(kopf.DeclarationError, match=message):
        declare(decorator, annotation, **options)


@pytest.mark.parametrize(('decorator', 'annotation'), [
    (kopf.on.create, 'DatabaseSpec | None'),
    (kopf.on.create, Optional['DatabaseSpec']),
    (kopf.on.create, Union['DatabaseSpec', kopf.Misfit]),
    (kopf.daemon, kopf.Live['DatabaseSpec']),
    (kopf.daemon, 'kopf.Live["DatabaseSpec"]'),
])
def test_annotations_are_those_of_the_class_however_they_are_quoted(decorator, annotation):
    declare(decorator, annotation)


@dataclasses.dataclass(frozen=True)
class Grouped:
    groups: dict[str, User] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(('annotation', 'is_typed'), [
    (dict[str, User], True),
    ('dict[str, User] | None', True),
    (dict, False),
    (dict[str, Any], False),
    (dict[str, dict[str, Any]], False),
])
def test_maps_are_typed_if_the_annotation_is_that_of_the_class(annotation, is_typed):
    cls = type('Thing', (), {'__annotations__': {'spec': Grouped}})
    cls = kopf.crd('example.com', 'v1', plural='things')(cls)

    def fn(new, **_):
        pass

    fn.__annotations__['new'] = annotation
    bound = kinds.get_declaration(cls).bind(fn, ('spec', 'groups'), is_lasting=False)
    assert bool(bound) == is_typed
    if bound:
        assert bound['new'].decode({'a': {'name': 'x'}}) == {'a': User('x')}


@pytest.mark.parametrize('field', ['spec.replica', 'spec.max_connections', 'spc', 'spec.users.0'])
def test_fields_that_the_class_does_not_have_are_errors_at_import(field):
    with pytest.raises(kopf.DeclarationError, match=f"Database has no field '{field}'"):
        @kopf.on.update(Database, field=field, registry=kopf.OperatorRegistry())
        def fn(**_):
            pass


@pytest.mark.parametrize('field', ['spec.maxConnections', 'metadata.labels.any', 'status.phase'])
def test_fields_that_the_class_has(field):
    @kopf.on.update(Database, field=field, registry=kopf.OperatorRegistry())
    def fn(**_):
        pass


def test_without_a_class_annotations_mean_nothing():
    @kopf.on.create('databases', registry=kopf.OperatorRegistry())
    def fn(spec: User, **_):
        pass


@testing.virtual_time
async def test_the_operator_says_that_the_cluster_has_another_definition():
    registry = kopf.OperatorRegistry()
    kopf.on.create(Database, registry=registry)(lambda **_: None)
    kopf.on.delete(Database, registry=registry)(lambda **_: None)
    async with running(registry, loose=True) as (_, operator):
        await operator.wait_log(
            "The cluster has another definition of databases.example.com than the code. To see how "
            "they differ: kopf crd FILE... --against=cluster")
        await settle()
        assert operator.text.count('another definition') == 1


@testing.virtual_time
async def test_the_operator_says_nothing_of_the_same_definition():
    registry = kopf.OperatorRegistry()
    kopf.on.create(Database, registry=registry)(lambda **_: None)
    async with running(registry) as (_, operator):
        await operator.wait_log('Watching databases')
        await settle()
        assert 'another definition' not in operator.text
        assert 'WARNING' not in operator.text
