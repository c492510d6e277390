"""What type checkers should have nothing to say about."""
import dataclasses
import datetime
import enum
import functools
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, assert_type

import annotated_types as at

import kopf


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    settings.posting.level = logging.WARNING
    settings.watching.server_timeout = 600
    memo.started = datetime.datetime.now(datetime.UTC)


@kopf.on.login(retries=3)
def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.probe(id='now')
def tell_time(**_: Any) -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


@kopf.on.create('kopfexamples', when=lambda spec, **_: bool(spec.get('field')))
@kopf.on.update('kopfexamples', field='spec.field', old=kopf.PRESENT, new='value')
@kopf.on.resume('kopfexamples', labels={'some': kopf.PRESENT, 'other': lambda value, **_: value})
@kopf.on.delete('kopfexamples', optional=True)
def handle(
        name: str, namespace: str | None, uid: str, spec: kopf.Spec, meta: kopf.Meta,
        status: Mapping[str, Any], body: kopf.Body, patch: kopf.Patch, diff: kopf.Diff,
        old: Any, new: Any, labels: kopf.Labels, annotations: Mapping[str, str],
        reason: str, retry: int, started: datetime.datetime, runtime: datetime.timedelta,
        logger: kopf.Logger, memo: kopf.Memo, resource: kopf.Resource, **_: object,
) -> dict[str, int]:
    patch.status['children'] = len(spec)
    for op, field, before, after in diff:
        logger.info(f"{op} {field}: {before} to {after}")
    if retry > 10 or runtime > datetime.timedelta(hours=1):
        raise kopf.PermanentError("Enough is enough.")
    if not labels:
        raise kopf.TemporaryError("Not yet.", delay=60)
    return {'retries': retry}


# Functions remain what they were.
assert_type(handle(
    name='', namespace=None, uid='', spec=kopf.Body({}).spec, meta=kopf.Body({}).metadata,
    status={}, body=kopf.Body({}), patch=kopf.Patch(), diff=kopf.Diff([]), old=None, new=None,
    labels={}, annotations={}, reason='', retry=0, started=datetime.datetime.now(),
    runtime=datetime.timedelta(), logger=logging.getLogger(), memo=kopf.Memo(),
    resource=kopf.Resource(group='', version='', plural='')), dict[str, int])


@kopf.on.create('pods')
async def annotated_by_those_who_know(
        namespace: str, logger: logging.Logger, memo: Any, **_: Any) -> None:
    logger.info(namespace)


def scale(factor: int, spec: kopf.Spec, **_: Any) -> int:
    return factor * int(spec['size'])


kopf.on.create('kopfexamples', id='twice')(functools.partial(scale, 2))


@dataclasses.dataclass
class Handler:
    limit: int

    def __call__(self, spec: kopf.Spec, **_: Any) -> bool:
        return len(spec) < self.limit


kopf.on.create('kopfexamples', id='limited')(Handler(5))
kopf.on.create('kopfexamples', id='limited too')(Handler(5).__call__)


def is_long(spec: kopf.Spec, **_: Any) -> bool:
    return len(spec) > 5


def is_in_a_test(namespace: str | None, **_: Any) -> bool:
    return namespace == 'test'


def is_urgent(value: str, **_: Any) -> bool:
    return value == 'high'


@kopf.on.create('kopfexamples', when=kopf.all_([is_long, kopf.not_(is_in_a_test)]),
                labels={'priority': kopf.any_([is_urgent, lambda value, **_: value == 'top'])})
def split(**_: Any) -> None:
    pass


@kopf.on.event('', 'v1', 'pods')
def see(event: kopf.RawEvent, type: str | None, body: kopf.Body, **_: Any) -> None:
    assert_type(event['object'], kopf.RawBody)


@kopf.index('pods')
async def by_label(name: str, labels: kopf.Labels, **_: Any) -> dict[str, str]:
    return dict.fromkeys(labels.values(), name)


@kopf.daemon('kopfexamples', cancellation_timeout=10, initial_delay=lambda **_: 5)
async def accompany(stopped: kopf.DaemonStopped, **_: Any) -> None:
    while not stopped:
        await stopped.wait(10)


@kopf.daemon('kopfexamples')
def accompany_in_a_thread(stopped: kopf.SyncDaemonStopperChecker, **_: Any) -> None:
    while not stopped:
        stopped.wait(10)


@kopf.timer('kopfexamples', interval=10, idle=5, sharp=True)
async def tick(body: kopf.Body, **_: Any) -> None:
    assert_type(body.spec, kopf.Spec)
    assert_type(body.metadata.name, str | None)


@kopf.reconcile('kopfexamples', owns=['configmaps', ('apps', 'v1', 'deployments')], interval=60,
                prune=False, recreate=True, conditions=True, labels={'a': 'b'})
def reconcile(
        name: str, children: kopf.Children, patch: kopf.Patch, reason: kopf.Reason, **_: Any,
) -> list[Any]:
    child = children.get('deployments.apps', name, namespace='default')
    assert_type(child, kopf.Body | None)
    assert_type(len(children), int)
    assert_type(list(children), list[kopf.Body])
    kopf.set_condition(patch, 'Ready', child is not None, 'Counted', message='text')
    kopf.set_condition(patch, 'Ready', 'Unknown', 'Counted')
    return [child]


@kopf.index('kopfexamples')
def users(name: str, spec: kopf.Spec, **_: Any) -> dict[str, str]:
    return dict.fromkeys(spec.get('secrets', []), name)


@kopf.reconcile('kopfexamples', watches={'secrets': users, 'configmaps': 'users'})
def reconcile_users(**_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples')
def reconcile_by_generator(name: str, **_: Any) -> Iterator[dict[str, Any]]:
    yield {'metadata': {'name': name}}


@kopf.reconcile('kopfexamples')
async def reconcile_by_async_generator(name: str, **_: Any) -> AsyncIterator[Mapping[str, Any]]:
    yield {'metadata': {'name': name}}


@kopf.reconcile('kopfexamples')
async def reconcile_by_itself(spec: kopf.Spec, **_: Any) -> None:
    pass


@kopf.on.validate('kopfexamples', operation='CREATE')
def validate(
        warnings: list[str], userinfo: kopf.UserInfo, sslpeer: Mapping[str, Any] | None,
        headers: Mapping[str, str], dryrun: bool, subresource: str | None, **_: Any,
) -> None:
    if not dryrun and 'system:masters' not in userinfo['groups']:
        raise kopf.AdmissionError("Not for you.", code=403)


@kopf.on.mutate('kopfexamples')
async def mutate(patch: kopf.Patch, **_: Any) -> None:
    patch.spec['field'] = 'value'


@kopf.on.create('kopfexamples', id='parent')
async def with_children(spec: Mapping[str, Any], **_: Any) -> None:
    @kopf.subhandler(id='child')
    async def child(**_: Any) -> None:
        pass

    await kopf.execute(fns={'other': mutate})


def use_an_index(by_label: kopf.Index[str, str], **_: Any) -> None:
    for value, store in by_label.items():
        assert_type(value, str)
        assert_type(list(store), list[str])

part_of_a_record: kopf.ProgressRecord = {'started': '2020-01-01T00:00:00Z', 'retries': 1}


class Engine(enum.StrEnum):
    MYSQL = 'MySQL'


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    name: Annotated[str, at.Len(1, 63)]
    password: kopf.SecretKeyRef


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseSpec:
    engine: Annotated[Engine, kopf.Immutable] = Engine.MYSQL
    storage: kopf.Quantity = kopf.Quantity('1Gi')
    port: kopf.IntOrString = 5432
    users: Annotated[list[User], kopf.ListMap('name')] = dataclasses.field(default_factory=list)
    limit: kopf.Nullable[int] = kopf.ABSENT
    template: kopf.Embedded | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseStatus:
    ready_replicas: int = 0
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='databases', columns=[kopf.Column('Port', '.spec.port')],
          rules=[kopf.CEL('self.spec.port != 0', "no port")], deprecated="Use v2.")
class Database:
    spec: DatabaseSpec
    status: DatabaseStatus = DatabaseStatus()


assert_type(Database, type[Database])
assert_type(DatabaseSpec().port, int | str)
assert kopf.Quantity('1Gi') > kopf.Quantity('1Mi')


@kopf.on.create(Database)
@kopf.on.update(Database, field='spec.port')
def handle_a_kind(spec: kopf.Spec, **_: Any) -> None:
    pass


@kopf.on.create(Database)
@kopf.on.delete(Database)
def handle_types(
        spec: DatabaseSpec, status: DatabaseStatus, body: Database, old: Database | None,
        patch: kopf.Patch, **_: Any) -> None:
    assert_type(spec.port, int | str)
    assert_type(body.spec, DatabaseSpec)
    patch.status = DatabaseStatus(ready_replicas=1)
    patch.status['field'] = 'value'


@kopf.on.update(Database, field='spec.port')
async def handle_a_field(old: kopf.IntOrString, new: kopf.IntOrString, **_: Any) -> None:
    pass


@kopf.on.delete(Database)
def handle_misfits(spec: DatabaseSpec | kopf.Misfit, **_: Any) -> None:
    if isinstance(spec, kopf.Misfit):
        assert_type(spec.reasons, tuple[str, ...])
    else:
        assert_type(spec, DatabaseSpec)


@kopf.daemon(Database)
async def accompany_a_kind(spec: kopf.Live[DatabaseSpec], **_: Any) -> None:
    assert_type(spec.value, DatabaseSpec)


@kopf.timer(Database, interval=1)
@kopf.index(Database)
@kopf.on.event(Database)
@kopf.on.validate(Database)
def use_everywhere(spec: DatabaseSpec, **_: Any) -> None:
    pass


@kopf.reconcile(Database)
def reconcile_a_kind(spec: DatabaseSpec, status: DatabaseStatus, **_: Any) -> list[dict[str, Any]]:
    return []


@kopf.reconcile('kopfexamples', owns=[Database, 'pods'])
def reconcile_kinds(spec: kopf.Spec, **_: Any) -> list[dict[str, Any]]:
    return []
