"""
Paths without resources: versions, health, discovery, and schemas.
"""
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopf._cogs.helpers import yamltexts
from kopf._kits.sandbox import discovery, encoding, requests
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.openapi import Documents
from kopf._kits.sandbox.statuses import NotAcceptable, Obj

JSON = 'application/json'
TEXT = 'text/plain; charset=utf-8'
DISCOVERY_GROUP = 'apidiscovery.k8s.io'


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(
        cluster: Cluster, documents: Documents, path: str, query: Mapping[str, Sequence[str]],
        accept: str, host: str,
) -> Answer | None:
    """What is answered there; none if nothing is (``404 page not found``)."""
    parts = path.strip('/').split('/')
    kinds = cluster.kinds
    match parts:
        case ['healthz' | 'readyz' | 'livez', *_]:
            text = f'[+]ping ok\n{parts[0]} check passed\n' if 'verbose' in query else 'ok'
            return Answer(text.encode(), content_type=TEXT)
        case ['version']:
            return _document(discovery.VERSION, accept)
        case ['api' | 'apis']:
            version = aggregated_version(accept)
            if version:
                return Answer(
                    encoding.encode(discovery.aggregated(kinds, parts[0] == 'api', version)),
                    content_type=f'{JSON};g={DISCOVERY_GROUP};v={version};as=APIGroupDiscoveryList',
                    headers={'Vary': 'Accept'})
            return _document(
                discovery.api_versions(host) if parts[0] == 'api' else
                discovery.group_list(kinds), accept)
        case ['api', version]:
            return _document(discovery.resource_list(kinds, '', version), accept)
        case ['apis', group]:
            found = discovery.group(kinds, group)
            return None if found is None else _document(found, accept)
        case ['apis', group, version]:
            if discovery.group(kinds, group) is None:
                return None
            return _document(discovery.resource_list(kinds, group, version), accept)
        case ['openapi', 'v2']:
            return _openapi(documents.second(), accept)
        case ['openapi', 'v3']:
            return Answer(documents.index() + b'\n')
        case ['openapi', 'v3', *rest]:
            body = documents.third('/'.join(rest))
            return None if body is None else _openapi(body, accept)
        case ['']:
            paths = ['/api', '/api/v1', '/apis', '/healthz', '/livez', '/openapi/v2',
                     '/openapi/v3', '/readyz', '/version']
            paths += [f'/apis/{group}' for group, _ in kinds.versions() if group]
            paths += [f'/apis/{group}/{version}' for group, version in kinds.versions() if group]
            return _document({'paths': sorted(set(paths))}, accept)
    return None


def aggregated_version(accept: str) -> str:
    """The version of aggregated discovery that the client prefers; empty if none."""
    for clause in accept.split(','):
        options: dict[str, str] = dict(re.findall(r';\s*(\w+)=([\w.]+)', clause))
        if clause.strip().startswith(JSON) and options.get('g') == DISCOVERY_GROUP \
                and options.get('as') == 'APIGroupDiscoveryList' \
                and options.get('v') in ('v2', 'v2beta1'):
            return options['v']
        if clause.strip() in (JSON, '*/*'):
            return ''
    return ''


def _openapi(body: bytes, accept: str) -> Answer:
    """Refuse clients that accept only protobuf: all documents are JSON."""
    if accept and not any(wanted in accept for wanted in ('json', '*/*', 'application/*')):
        raise NotAcceptable([JSON])
    return Answer(body)


def _document(document: Obj, accept: str) -> Answer:
    media_type = requests.negotiate(accept).media_type
    return Answer(format_as(media_type, encoding.encode(document)), content_type=media_type)


def format_as(media_type: str, body: bytes) -> bytes:
    """Format JSON as a document of JSON or YAML."""
    if media_type == JSON:
        return body + b'\n'
    return yamltexts.dump_all([encoding.decode_own(body)], allow_unicode=True).encode()
