"""
Requests as the API understands them: what is asked of which resource, in which format.

Parsing raises the errors of `statuses`; nothing here knows about stored objects.
"""
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.lagging import Lag
from kopf._kits.sandbox.statuses import BadRequest, Cause, Invalid, NotAcceptable, qualified

MEDIA_TYPES = ('application/json', 'application/yaml')
MAX_BODY = 3 * 1024 * 1024
META_GROUP = 'meta.k8s.io'
_TRANSFORMS = ('Table', 'PartialObjectMetadata', 'PartialObjectMetadataList')


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ''

    @property
    def is_master(self) -> bool:
        return 'system:masters' in self.groups


ADMIN = User('admin', ('system:masters', 'system:authenticated'), 'admin')
ANONYMOUS = User('system:anonymous', ('system:unauthenticated',))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request asks for: of a resource, or (if ``path`` is set) of a path."""
    verb: str
    group: str = ''
    resource: str = ''
    subresource: str = ''
    namespace: str = ''
    name: str = ''
    path: str = ''

    @property
    def resources(self) -> tuple[str, ...]:
        """All the names of what it is about: without and with the group, or the path."""
        if self.path:
            return (self.path,)
        part = f'/{self.subresource}' if self.subresource else ''
        return f'{self.resource}{part}', f'{qualified(self.group, self.resource)}{part}'


@dataclass(frozen=True, slots=True)
class Address:
    """What a path names: a resource, maybe in a namespace, maybe one object, maybe a part of it."""
    group: str
    version: str
    plural: str = ''
    namespace: str = ''
    name: str = ''
    subresource: str = ''
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The format of the answer: the media type, and what the object is shown as, if not as is."""
    media_type: str = 'application/json'
    shape: Literal['', 'Table', 'PartialObjectMetadata', 'PartialObjectMetadataList'] = ''
    version: str = 'v1'


@dataclass(slots=True, kw_only=True)
class Request:
    """One request on a resource, as the modules of the sandbox pass it on."""
    verb: str
    kind: Kind
    namespace: str = ''
    name: str = ''
    subresource: str = ''
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    user: User = ADMIN
    agent: str = 'sandbox'
    content_type: str = 'application/json'
    body: bytes = b''
    accepted: Accepted = Accepted()
    #: How far the server lags behind that is asked; none if it knows everything.
    lag: Lag | None = None
    #: Told to the client in headers, once each.
    warnings: list[str] = field(default_factory=list)

    def option(self, name: str) -> str:
        values = self.query.get(name)
        return values[0] if values else ''

    def flag(self, name: str) -> bool:
        """Anything but an explicit no is a yes, as in the real API."""
        values = self.query.get(name)
        return bool(values and values[0].lower() not in ('0', 'false'))

    def number(self, name: str) -> int | None:
        text = self.option(name)
        if not text:
            return None
        why = 'invalid syntax'
        if re.fullmatch('[+-]?[0-9]+', text, re.ASCII):
            if len(text) < 20 and abs(int(text)) < 1 << 63:
                return int(text)
            why = 'value out of range'
        quoted = text.replace('\\', '\\\\').replace('"', '\\"')
        raise BadRequest(f'strconv.ParseInt: parsing "{quoted}": {why}')

    def revision(self) -> int | None:
        """The revision asked for; none if it is left to the API."""
        text = self.option('resourceVersion')
        if not text:
            return None
        if not re.fullmatch('[0-9]{1,19}', text):
            why = (f'resourceVersion: Invalid value: "{text}": '
                   f'strconv.ParseUint: parsing "{text}": invalid syntax')
            raise statuses.APIError(why, reason='') if self.verb == 'watch' else BadRequest(
                f"invalid resource version: {why}")
        return int(text)

    def known(self, revision: int) -> int:
        """The latest revision that the server knows, if that of the database is this one."""
        return revision if self.lag is None or self.lag.is_over else self.lag.revision

    @property
    def media_type(self) -> str:
        """The format of the body."""
        return self.content_type.partition(';')[0].strip().lower()

    @property
    def dry_run(self) -> bool:
        return 'All' in self.query.get('dryRun', ())

    @property
    def manager(self) -> str:
        return self.option('fieldManager') or self.agent.split('/', 1)[0][:128] or 'unknown'

    @property
    def applies(self) -> bool:
        """Whether it is a server-side apply."""
        return self.verb == 'patch' and self.media_type == 'application/apply-patch+yaml'

    def check_options(self, options: str) -> None:
        """Refuse what ``options`` (e.g. ``CreateOptions``) of this request must not be."""
        causes = dry_run_causes(self.query.get('dryRun', ()))
        validation, supported = self.option('fieldValidation'), ('', 'Ignore', 'Strict', 'Warn')
        if validation not in supported:
            causes.append(wordings.unsupported('fieldValidation', validation, supported))
        causes.extend(_manager_causes(self.option('fieldManager')))
        if causes:
            raise Invalid.on(META_GROUP, options, '', causes)


def dry_run_causes(values: Sequence[str]) -> list[Cause]:
    """What is wrong with the values of ``dryRun``."""
    if all(value == 'All' for value in values):
        return []
    shown = ' '.join(f'"{value}"' for value in values)
    return [Cause('FieldValueNotSupported', 'dryRun',
                  f'Unsupported value: [{shown}]: supported values: "All"')]


def _manager_causes(manager: str) -> list[Cause]:
    if len(manager.encode()) > 128:
        return [wordings.too_long('fieldManager', 128)]
    for index, char in enumerate(manager):
        if not char.isprintable():
            quoted = manager.encode('unicode_escape').decode()
            return [Cause('FieldValueInvalid', 'fieldManager',
                          f'Invalid value: "{quoted}": invalid character '
                          f'U+{ord(char):04X} (at position {index})')]
    return []


def parse_address(path: str) -> Address | None:
    """What a path like ``/apis/apps/v1/namespaces/x/deployments/y/scale`` names, if a resource."""
    parts = [urllib.parse.unquote(part) for part in path.split('/')[1:]]
    if parts and not parts[-1]:
        parts.pop()
    if '' in parts:
        return None
    match parts:
        case ['api', version, *rest]:
            group = ''
        case ['apis', group, version, *rest]:
            pass
        case _:
            return None
    watch = rest[:1] == ['watch'] and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ''
    if rest[:1] == ['namespaces'] and len(rest) > 2 and not (
            len(rest) == 3 and rest[2] in ('status', 'finalize')):
        namespace, rest = rest[1], rest[2:]
    plural, name, *subs = [*rest, '', ''][:max(len(rest), 2)]
    return Address(group, version, plural, namespace, name, '/'.join(subs), watch)


def parse_query(text: str) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(text, keep_blank_values=True)


def negotiate(header: str) -> Accepted:
    """
    The best format that the client accepts and the API has, by the order of the header.

    Raises `NotAcceptable` if there is none (e.g. protobuf only).
    """
    if not header:
        return Accepted()
    clauses = []
    for index, clause in enumerate(header.split(',')):
        media_type, *params = [part.strip() for part in clause.split(';')]
        options = dict(param.split('=', 1) for param in params if '=' in param)
        try:
            quality = float(options.get('q', 1))
        except ValueError:
            quality = 1.0
        clauses.append((-quality, index, media_type, options))
    known = (*MEDIA_TYPES, 'application/vnd.kubernetes.protobuf', '*/*', 'application/*')
    if not any(clause[2] in known for clause in clauses):
        error = NotAcceptable([])
        error.message = ("406: Not Acceptable\n\nAvailable representations: "
                         f"{', '.join(known[:3])}")
        error.details = {}
        raise error
    for _, _, media_type, options in sorted(clauses, key=lambda clause: clause[:2]):
        if media_type in ('*/*', 'application/*'):
            media_type = MEDIA_TYPES[0]
        if media_type not in MEDIA_TYPES:
            continue
        shape = options.get('as', '')
        if not shape:
            return Accepted(media_type)
        if (shape in _TRANSFORMS and options.get('g') == META_GROUP
                and options.get('v') in ('v1', 'v1beta1')):
            return Accepted(media_type, shape, options['v'])  # type: ignore[arg-type]
    raise NotAcceptable([*MEDIA_TYPES, 'application/vnd.kubernetes.protobuf'])


def selected_name(query: Mapping[str, Sequence[str]]) -> str:
    """The name, if a query is about the one object of this name: rights can be so narrow."""
    selector = query.get('fieldSelector', [''])[0]
    for part in selector.split(','):
        field, _, value = part.partition('=')
        if field == 'metadata.name' and value:
            return value.removeprefix('=')
    return ''


def verb_of(method: str, address: Address, query: Mapping[str, Sequence[str]]) -> str:
    """The API's verb for a method of HTTP; empty if there is none."""
    if method in ('GET', 'HEAD'):
        if address.subresource:
            return 'get'
        watch = query.get('watch')
        if address.watch or (not address.name and watch and watch[0].lower() not in ('0', 'false')):
            return 'watch'
        return 'get' if address.name else 'list'
    if method == 'DELETE':
        return 'delete' if address.name else 'deletecollection'
    return {'POST': 'create', 'PUT': 'update', 'PATCH': 'patch'}.get(method, '')


def make_target(method: str, address: Address, query: Mapping[str, Sequence[str]]) -> Target:
    """What a request to a resource asks for."""
    return Target(
        verb=verb_of(method, address, query), group=address.group, resource=address.plural,
        subresource=address.subresource, name=address.name or selected_name(query),
        namespace=address.namespace or (address.name if address.plural == 'namespaces' else ''))
