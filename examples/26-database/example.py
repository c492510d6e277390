"""
Databases of PostgreSQL with users, backups, and restore. A ``Database`` is a stateful set with a
service, and with backups by a schedule; a new database can begin with the backup of another one. A
``DatabaseUser`` has a password in a Secret, and a role in the database, which the operator creates
by SQL, corrects, and drops: see ``docs/example-database.md``. This example needs ``pip install
annotated-types``, and its tests need ``kopf[sandbox]``. Type ``pytest examples/26-database``: the
tests use a fake server. In a cluster, type ``pip install asyncpg``, then ``kopf run -A
examples/26-database/example.py``, apply ``crd.yaml`` and ``obj.yaml``, and see the databases in
``kubectl get databases,databaseusers``.
"""
import base64
import contextlib
import dataclasses
import json
import pathlib
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

import kopf
from annotated_types import Ge, Le, Len

ADMIN, NAME = 'postgres', 'app'  # of the only database on each server
OWNER = 'app_owner'  # of all tables, as the users act as this role
CRON = kopf.Pattern(r'^(@[a-z]+|\S+( \S+){4})$')
IS_NAME = "self.metadata.name.matches('^[a-z][a-z0-9-]{0,39}$')"
START, BACKUP = ((pathlib.Path(__file__).parent / f'{name}.sh').read_text(encoding='utf-8')
                 for name in ('start', 'backup'))


# The kinds.

@dataclasses.dataclass(frozen=True, kw_only=True)
class Backups:
    schedule: Annotated[str, CRON] = '0 3 * * *'  # In the syntax of cron.
    keep: Annotated[int, Ge(1), Le(365)] = 7  # How many to keep.
    storage: Annotated[kopf.Quantity, kopf.Immutable] = kopf.Quantity('1Gi')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restore:
    """What a new database begins with: a backup of another database of the same namespace."""
    database: Annotated[str, Len(1, 40)]
    file: Annotated[str, kopf.Pattern(r'^[0-9-]+\.sql\.gz$')]  # E.g. 20261127-030000.sql.gz.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseSpec:
    version: Annotated[int, Ge(14), Le(18), kopf.Immutable] = 17  # The major version of PostgreSQL.
    storage: Annotated[kopf.Quantity, kopf.Immutable] = kopf.Quantity('1Gi')
    backups: Backups = Backups()
    restore: Annotated[Restore | None, kopf.Immutable] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseStatus:
    ready: bool = False
    filled: bool = False  # Whether the data are complete: the server was ready once.
    last_backup: str | None = None
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='databases', short=['db'],
          columns=[kopf.Column('Ready', '.status.ready'),
                   kopf.Column('Last backup', '.status.lastBackup')],
          rules=[kopf.CEL(IS_NAME, "The name is too long, or is none of a service"),
                 kopf.CEL('has(self.spec.restore) == has(oldSelf.spec.restore)',
                          "Only a new database can begin with a backup", field='.spec.restore')])
class Database:
    spec: DatabaseSpec = DatabaseSpec()
    status: DatabaseStatus = DatabaseStatus()


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserSpec:
    database: Annotated[str, Len(1, 40), kopf.Immutable]  # In the same namespace.
    connections: Annotated[int, Ge(1), Le(1000)] = 10  # How many at the same time.


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserStatus:
    role: dict[str, Any] = dataclasses.field(default_factory=dict)
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='databaseusers',
          columns=[kopf.Column('Database', '.spec.database'),
                   kopf.Column('Ready', '.status.conditions[?(@.type=="Ready")].status')],
          rules=[kopf.CEL(f"{IS_NAME} && !self.metadata.name.startsWith('pg') && "
                          f"!(self.metadata.name in ['{ADMIN}', 'public', 'none'])",
                          "The name cannot be that of a user")])
class DatabaseUser:
    spec: UserSpec
    status: UserStatus = UserStatus()


# What lives as long as the data, not as the object: nobody owns it.

@kopf.on.create(Database)
@kopf.needs('secrets', verbs=['create', 'patch', 'list'])
@kopf.needs('persistentvolumeclaims', verbs=['create', 'patch', 'list'])
async def keep(name, namespace, spec: DatabaseSpec, **_):
    for kind, suffix, content in [
            ('Secret', 'admin', {'stringData': {'password': secrets.token_urlsafe()}}),
            ('PersistentVolumeClaim', 'backups', {'spec': describe_claim(spec.backups.storage)})]:
        if await kopf.get(f'{kind.lower()}s', f'{name}-{suffix}') is None:
            await kopf.apply({'apiVersion': 'v1', 'kind': kind, **content, 'metadata': {
                'name': f'{name}-{suffix}', 'namespace': namespace,
                'labels': {'example.com/database': name}}})


# The server and its backups.

@kopf.reconcile(
    Database, owns=['statefulsets.apps', 'services', 'cronjobs.batch'], conditions=True)
def serve(name, spec: DatabaseSpec, status: DatabaseStatus, children, patch, **_):
    labels = {'database': name}
    server = children.get('statefulsets', name)
    is_ready = bool(server and server.status.get('readyReplicas'))
    is_filled = is_ready or status.filled
    yield {'apiVersion': 'v1', 'kind': 'Service', 'metadata': {'name': name}, 'spec': {
        'selector': labels, 'ports': [{'port': 5432, 'protocol': 'TCP'}]}}
    yield {
        'apiVersion': 'apps/v1', 'kind': 'StatefulSet', 'metadata': {'name': name},
        'spec': {
            'serviceName': name, 'replicas': 1, 'selector': {'matchLabels': labels},
            'template': {'metadata': {'labels': labels},
                         'spec': describe_server(name, spec, is_filled=is_filled)},
            'volumeClaimTemplates': [{
                'metadata': {'name': 'data'}, 'spec': describe_claim(spec.storage)}],
        },
    }
    yield {
        'apiVersion': 'batch/v1', 'kind': 'CronJob', 'metadata': {'name': f'{name}-backup'},
        'spec': {
            'schedule': spec.backups.schedule, 'concurrencyPolicy': 'Forbid',
            'jobTemplate': {'spec': {'backoffLimit': 3, 'activeDeadlineSeconds': 6 * 3600,
                                     'template': {'spec': describe_backup(name, spec)}}},
        },
    }
    job = children.get('cronjobs', f'{name}-backup')
    last = job and job.status.get('lastSuccessfulTime')
    patch.status.update(ready=is_ready, filled=is_filled, lastBackup=last)


def describe_claim(storage: kopf.Quantity) -> dict[str, Any]:
    return {'accessModes': ['ReadWriteOnce'], 'resources': {'requests': {'storage': str(storage)}}}


def describe_env(name: str, variable: str, **values: str) -> list[dict[str, Any]]:
    password = {'secretKeyRef': {'name': f'{name}-admin', 'key': 'password'}}
    return [{'name': variable, 'valueFrom': password},
            *({'name': key, 'value': value} for key, value in values.items())]


def describe_volume(name: str, database: str, **options: bool) -> dict[str, Any]:
    return {'name': name, 'persistentVolumeClaim': {'claimName': f'{database}-backups', **options}}


def describe_server(name: str, spec: DatabaseSpec, *, is_filled: bool) -> dict[str, Any]:
    restored = [] if spec.restore is None or is_filled else [spec.restore]
    return {
        'containers': [{
            'name': 'postgres',
            'image': f'postgres:{spec.version}',
            'command': ['bash', '-c', START],
            'env': describe_env(name, 'POSTGRES_PASSWORD', POSTGRES_DB=NAME, PGDATA='/data/pgdata'),
            'ports': [{'containerPort': 5432, 'protocol': 'TCP'}],
            'readinessProbe': {'exec': {'command': ['pg_isready', '-h', '127.0.0.1']}},
            'volumeMounts': [{'name': 'data', 'mountPath': '/data'}, *({
                'name': 'restored', 'readOnly': True, 'subPath': one.file,
                'mountPath': '/docker-entrypoint-initdb.d/restore.sql.gz'} for one in restored)],
        }],
        'volumes': [describe_volume('restored', one.database, readOnly=True) for one in restored],
    }


def describe_backup(name: str, spec: DatabaseSpec) -> dict[str, Any]:
    return {
        'restartPolicy': 'Never',
        'containers': [{
            'name': 'backup',
            'image': f'postgres:{spec.version}',
            'command': ['bash', '-c', BACKUP],
            'env': describe_env(
                name, 'PGPASSWORD', PGHOST=name, PGUSER=ADMIN, PGDATABASE=NAME,
                OWNER=OWNER, KEEP=str(spec.backups.keep)),
            'volumeMounts': [{'name': 'backups', 'mountPath': '/backups'}],
        }],
        'volumes': [describe_volume('backups', name)],
    }


# The password of a user, and the role in the database.

@kopf.reconcile(DatabaseUser, owns=['secrets'], conditions=True)
def log_in(name, namespace, spec: UserSpec, **_):
    kopf.trigger('databaseusers', name, namespace=namespace)  # the password can be another one
    return {
        'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': f'{name}-login'},
        'stringData': {
            'host': spec.database, 'database': NAME, 'username': name,
            'password': kopf.generated(secrets.token_urlsafe)},
    }


role = kopf.external(
    DatabaseUser, id='role', interval=60, consistency=0, conditions=True,
    limit=kopf.Rate(20, concurrency=2), limit_key=lambda spec, namespace, **_: (
        f'{spec["database"]}.{namespace}'))


@role.desired
async def desired(spec: UserSpec, meta, **_):
    if 'deletionTimestamp' in meta:
        return {}
    database = await kopf.get(Database, spec.database)
    if database is None or not database.status.ready:
        raise kopf.TemporaryError(f"The database {spec.database} does not run.", delay=10)
    return {'connections': spec.connections, 'is_superuser': False, 'can_log_in': True}


@role.observe
async def observe(name, namespace, spec: UserSpec, **_):
    import asyncpg  # pyright: ignore[reportMissingImports]
    if await kopf.get(Database, spec.database) is None:
        return None
    async with connect(spec, namespace, ADMIN) as connection:
        if (found := await look_at(connection, name)) is None:
            return None
    try:  # the server shows the password to nobody, so it is tried, as the user does
        async with connect(spec, namespace, name):
            return {**found, 'can_log_in': True}
    except asyncpg.TooManyConnectionsError:  # which the server says after the login
        return {**found, 'can_log_in': True}
    except asyncpg.InvalidAuthorizationSpecificationError:
        return {**found, 'can_log_in': False}


@role.update
@role.create(idempotent=True)  # as the name is the token
async def put(name, namespace, spec: UserSpec, meta, **_):
    key = f'{namespace}/{spec.database}/{name}'
    if 'deletionTimestamp' in meta:  # only the key is needed of what can exist
        return key
    password = await get_password(f'{name}-login')
    async with connect(spec, namespace, ADMIN) as connection:
        for one in (OWNER, name):
            if await look_at(connection, one) is None:
                await execute(connection, 'CREATE ROLE %I', one)
        await execute(
            connection, 'ALTER ROLE %I LOGIN PASSWORD %L CONNECTION LIMIT %s NOSUPERUSER '
            "VALID UNTIL 'infinity'", name, password, str(spec.connections))
        await execute(connection, 'GRANT %I TO %I', OWNER, name)
        await execute(connection, 'ALTER ROLE %I SET role TO %I', name, OWNER)
        await execute(connection, 'ALTER DATABASE %I OWNER TO %I', NAME, OWNER)
    return key


@role.delete
async def drop(name, namespace, spec: UserSpec, **_):
    if await kopf.get(Database, spec.database) is None:
        return
    async with connect(spec, namespace, ADMIN) as connection:
        if await look_at(connection, name) is not None:
            await execute(connection, 'REASSIGN OWNED BY %I TO %I', name, OWNER)  # the tables stay
            await execute(connection, 'DROP OWNED BY %I', name)
            await execute(connection, 'DROP ROLE %I', name)


@contextlib.asynccontextmanager
async def connect(spec: UserSpec, namespace: str, user: str) -> AsyncIterator[Any]:
    import asyncpg  # pyright: ignore[reportMissingImports]  # all else works without it
    secret = f'{spec.database}-admin' if user == ADMIN else f'{user}-login'
    connection = await asyncpg.connect(
        host=f'{spec.database}.{namespace}', user=user, password=await get_password(secret),
        database=NAME, timeout=10)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def get_password(secret: str) -> str:
    if (found := await kopf.get('secrets', secret)) is None:
        raise kopf.TemporaryError(f"There is no secret {secret} yet.", delay=5)
    return base64.b64decode(found['data']['password']).decode()


async def look_at(connection: Any, name: str) -> dict[str, Any] | None:
    """Look at a role; None if there is no such role."""
    return json.loads(await connection.fetchval(
        "SELECT json_build_object('connections', rolconnlimit, 'is_superuser', rolsuper) "
        'FROM pg_roles WHERE rolname = $1', name) or 'null')


async def execute(connection: Any, template: str, *values: str) -> None:
    """Execute a statement whose identifiers (%I) and texts (%L) the server itself quotes."""
    await connection.execute(
        await connection.fetchval('SELECT format($1, VARIADIC $2::text[])', template, values))
