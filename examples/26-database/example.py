"""
Databases of PostgreSQL with users, backups, and restore. A ``Database`` is a stateful set with a
service, and with backups by a schedule; a new database can begin with the backup of another one. A
``DatabaseUser`` has a password in a Secret, and a role in the database, which the operator creates
by SQL, corrects, and drops. ``docs/example-database.md`` says why it is built so. Type ``pytest
examples/26-database``: the tests use a fake server. In a cluster, type ``pip install asyncpg``,
then ``kopf run -A examples/26-database/example.py``, apply ``crd.yaml`` and ``obj.yaml``, and see
the databases in ``kubectl get databases,databaseusers``.
"""
import base64
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

import kopf
from annotated_types import Ge, Le, Len

ADMIN = 'postgres'
NAME = 'app'  # of the only database on each server
SCRIPT = '''
set -eu -o pipefail
file=/backups/$(date -u +%Y%m%d-%H%M%S).sql.gz
pg_dump --no-owner --no-acl | gzip > $file.part
mv $file.part $file
ls -t /backups/*.sql.gz | tail -n +$((KEEP + 1)) | xargs -r rm
'''


# The kinds.

@dataclasses.dataclass(frozen=True, kw_only=True)
class Backups:
    schedule: Annotated[str, Len(9, 100)] = '0 3 * * *'  # In the syntax of cron.
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
    last_backup: str | None = None
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='databases', short=['db'],
          columns=[kopf.Column('Ready', '.status.ready'),
                   kopf.Column('Last backup', '.status.lastBackup')],
          rules=[kopf.CEL('size(self.metadata.name) <= 40', "The name is too long")])
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
          rules=[kopf.CEL("self.metadata.name.matches('^[a-z][a-z0-9-]{0,39}$') && "
                          "!self.metadata.name.startsWith('pg') && "
                          f"self.metadata.name != '{ADMIN}'",
                          "The name cannot be that of a user")])
class DatabaseUser:
    spec: UserSpec
    status: UserStatus = UserStatus()


# What lives as long as the data, not as the object: nobody owns it.

@kopf.on.create(Database)
@kopf.needs('secrets', verbs=['create', 'patch', 'list'])
@kopf.needs('persistentvolumeclaims', verbs=['create', 'patch'])
async def keep(name, namespace, spec: DatabaseSpec, **_):
    metadata = {'namespace': namespace, 'labels': {'example.com/database': name}}
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {**metadata, 'name': f'{name}-admin'},
        'stringData': {'password': kopf.generated(secrets.token_urlsafe)}})
    await kopf.apply({
        'apiVersion': 'v1', 'kind': 'PersistentVolumeClaim',
        'metadata': {**metadata, 'name': f'{name}-backups'},
        'spec': describe_claim(spec.backups.storage)})


# The server and its backups.

@kopf.reconcile(
    Database, owns=['statefulsets.apps', 'services', 'cronjobs.batch'], conditions=True)
def serve(name, spec: DatabaseSpec, children, patch, **_):
    labels = {'database': name}
    yield {
        'apiVersion': 'v1', 'kind': 'Service', 'metadata': {'name': name},
        'spec': {'selector': labels, 'ports': [{'port': 5432, 'protocol': 'TCP'}]},
    }
    yield {
        'apiVersion': 'apps/v1', 'kind': 'StatefulSet', 'metadata': {'name': name},
        'spec': {
            'serviceName': name, 'replicas': 1,
            'selector': {'matchLabels': labels},
            'template': {'metadata': {'labels': labels}, 'spec': describe_server(name, spec)},
            'volumeClaimTemplates': [
                {'metadata': {'name': 'data'}, 'spec': describe_claim(spec.storage)}],
        },
    }
    yield {
        'apiVersion': 'batch/v1', 'kind': 'CronJob', 'metadata': {'name': f'{name}-backup'},
        'spec': {
            'schedule': spec.backups.schedule, 'concurrencyPolicy': 'Forbid',
            'jobTemplate': {'spec': {'backoffLimit': 3, 'template': {
                'spec': describe_backup(name, spec)}}},
        },
    }
    server = children.get('statefulsets', name)
    job = children.get('cronjobs', f'{name}-backup')
    patch.status['ready'] = bool(server and server.status.get('readyReplicas'))
    patch.status['lastBackup'] = job and job.status.get('lastSuccessfulTime')


def describe_claim(storage: kopf.Quantity) -> dict[str, Any]:
    return {'accessModes': ['ReadWriteOnce'], 'resources': {'requests': {'storage': str(storage)}}}


def describe_env(name: str, variable: str, **values: str) -> list[dict[str, Any]]:
    """Describe the environment: the password of the administrator, and other values."""
    password = {'secretKeyRef': {'name': f'{name}-admin', 'key': 'password'}}
    return [{'name': variable, 'valueFrom': password},
            *({'name': key, 'value': value} for key, value in values.items())]


def describe_volume(name: str, database: str) -> dict[str, Any]:
    return {'name': name, 'persistentVolumeClaim': {'claimName': f'{database}-backups'}}


def describe_server(name: str, spec: DatabaseSpec) -> dict[str, Any]:
    restored = [] if spec.restore is None else [{
        'name': 'restored', 'readOnly': True, 'subPath': spec.restore.file,
        'mountPath': '/docker-entrypoint-initdb.d/restore.sql.gz'}]  # read if there are no data
    return {
        'containers': [{
            'name': 'postgres',
            'image': f'postgres:{spec.version}',
            'env': describe_env(
                name, 'POSTGRES_PASSWORD', POSTGRES_DB=NAME, PGDATA='/data/pgdata'),
            'ports': [{'containerPort': 5432, 'protocol': 'TCP'}],
            'readinessProbe': {'exec': {'command': ['pg_isready', '-h', '127.0.0.1']}},
            'volumeMounts': [{'name': 'data', 'mountPath': '/data'}, *restored],
        }],
        'volumes': [] if spec.restore is None else [
            describe_volume('restored', spec.restore.database)],
    }


def describe_backup(name: str, spec: DatabaseSpec) -> dict[str, Any]:
    return {
        'restartPolicy': 'Never',
        'containers': [{
            'name': 'backup',
            'image': f'postgres:{spec.version}',
            'command': ['bash', '-c', SCRIPT],
            'env': describe_env(
                name, 'PGPASSWORD', PGHOST=name, PGUSER=ADMIN, PGDATABASE=NAME,
                KEEP=str(spec.backups.keep)),
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
            'password': kopf.generated(secrets.token_urlsafe),
        },
    }


role = kopf.external(
    DatabaseUser, id='role', interval=60, consistency=0, conditions=True,
    limit=kopf.Rate(20, concurrency=2), limit_key=lambda spec, namespace, **_: (
        f'{spec["database"]}.{namespace}'))


@role.desired
@kopf.needs('databases.example.com', verbs=['get'])
async def desired(spec: UserSpec, **_):
    database = await kopf.get(Database, spec.database)
    if database is None or not database.status.ready:
        raise kopf.TemporaryError(f"The database {spec.database} does not run.", delay=10)
    return {'connections': spec.connections, 'can_log_in': True}


@role.observe
@kopf.needs('secrets', verbs=['get'])
async def observe(name, namespace, spec: UserSpec, **_):
    if await kopf.get(Database, spec.database) is None:
        return None
    async with connect(spec, namespace, ADMIN) as connection:
        if (limit := await get_limit(connection, name)) is None:
            return None
    return {'connections': limit, 'can_log_in': await can_log_in(spec, name, namespace)}


@role.update
@role.create(idempotent=True)  # as the name is the token
async def put(name, namespace, spec: UserSpec, **_):
    password = await get_password(f'{name}-login')
    async with connect(spec, namespace, ADMIN) as connection:
        if await get_limit(connection, name) is None:
            await execute(connection, 'CREATE ROLE %I', name)
        await execute(
            connection, 'ALTER ROLE %I LOGIN PASSWORD %L CONNECTION LIMIT %s',
            name, password, str(spec.connections))
        await execute(connection, 'GRANT CREATE, USAGE ON SCHEMA public TO %I', name)
    return f'{namespace}/{spec.database}/{name}'


@role.delete
async def drop(name, namespace, spec: UserSpec, **_):
    if await kopf.get(Database, spec.database) is None:
        return
    async with connect(spec, namespace, ADMIN) as connection:
        if await get_limit(connection, name) is not None:
            await execute(connection, 'REASSIGN OWNED BY %I TO %I', name, ADMIN)  # the tables stay
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
    found = await kopf.get('secrets', secret)
    if found is None:
        raise kopf.TemporaryError(f"There is no secret {secret} yet.", delay=5)
    return base64.b64decode(found['data']['password']).decode()


async def get_limit(connection: Any, name: str) -> int | None:
    """Get how many connections a role can have; None if there is no such role."""
    return await connection.fetchval('SELECT rolconnlimit FROM pg_roles WHERE rolname = $1', name)


async def can_log_in(spec: UserSpec, name: str, namespace: str) -> bool:
    """Try the password as the user does; the server shows it to nobody."""
    import asyncpg  # pyright: ignore[reportMissingImports]
    try:
        async with connect(spec, namespace, name):
            return True
    except asyncpg.TooManyConnectionsError:  # which the server says after the login
        return True
    except asyncpg.InvalidAuthorizationSpecificationError:
        return False


async def execute(connection: Any, template: str, *values: str) -> None:
    """Execute a statement whose identifiers (%I) and texts (%L) the server itself quotes."""
    await connection.execute(
        await connection.fetchval('SELECT format($1, VARIADIC $2::text[])', template, values))
