"""
Webhooks: the URLs of handlers, and their records in the webhook configurations.

There is one webhook for each handler id. Handlers of the same id (e.g. of several decorators on one
function) have several webhooks only if some of them validate and others mutate, or if they differ
in an option that a webhook has once, such as ``failurePolicy``. Everything in this module is a pure
function of its arguments.
"""
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.structs import references, reviews
from kopf._core.intents import handlers

OPERATIONS: Sequence[reviews.Operation] = ('CREATE', 'UPDATE', 'DELETE', 'CONNECT')
TIMEOUT = 30
"""How long (seconds) an API server waits for the response: the maximum that Kubernetes allows."""

MAX_NAME = 253
"""The maximal length of names in Kubernetes: of a DNS subdomain (RFC 1123)."""
MAX_SLUG = 150
MIN_LABELS = 3
"""How many dot-separated parts the full name of a webhook must have: a rule of Kubernetes."""

FALLBACK_DOMAIN = 'kopf.dev'

_SLUG = re.compile(r'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
_URL_PATH = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*')
_LABEL_NAME = re.compile(r'([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)')
_LABEL_PREFIX = re.compile(rf'(?=.{{1,253}}\Z){_SLUG.pattern}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Webhook:
    """
    Handlers of one id that differ only by their resources and operations, i.e. by their rules.
    """
    path: str
    """The end of the URL of the webhook, if the configuration has a URL."""
    slug: str
    """The end of the path of the webhook, if the configuration has a service: a DNS subdomain."""
    name: str
    """The name in the configuration, without the name of the configuration as a suffix."""
    members: tuple[handlers.WebhookHandler, ...]

    @property
    def sample(self) -> handlers.WebhookHandler:
        return self.members[0]


class Directory:
    """All webhooks of an operator. Finds the handlers by the end of the URL of a request."""

    def __init__(self, declared: Iterable[handlers.WebhookHandler]) -> None:
        self.webhooks = arrange(declared)
        self._known: dict[str, frozenset[handlers.WebhookHandler]] = {}
        for webhook in self.webhooks:
            self._known[webhook.path] = self._known[webhook.slug] = frozenset(webhook.members)
        for id_ in {webhook.sample.id for webhook in self.webhooks}:
            self._known[id_] = frozenset(
                handler for webhook in self.webhooks for handler in webhook.members
                if handler.id == id_)

    def find(self, path: str) -> frozenset[handlers.WebhookHandler]:
        """Find the handlers by a path or slug of a webhook, or by a handler id; maybe none."""
        found = self._known.get(path)
        return self._known.get(path.strip('/'), frozenset()) if found is None else found


def arrange(declared: Iterable[handlers.WebhookHandler]) -> list[Webhook]:
    """
    Make the webhooks of handlers. The names and paths depend on the handlers only.

    The path of a webhook is the handler id. The name is the same with ``_`` replaced by ``-``, and
    ``/`` by ``.``: e.g. the handler ``check/spec_size`` has the name ``check.spec-size``. If the
    API server would not accept the result, it is cleaned of the wrong characters and gets a hash of
    the id. If an id has several webhooks, they are numbered.
    """
    groups: dict[tuple[str, str, str], list[handlers.WebhookHandler]] = {}
    for handler in declared:
        groups.setdefault((handler.id, handler.reason, describe_options(handler)), []).append(
            handler)
    slugs: dict[str, str] = {}
    for id_, _, _ in groups:
        if id_ not in slugs:
            slug = make_slug(id_)
            slugs[id_] = slug if slug not in slugs.values() else _add_hash(slug, id_)
    used = {*slugs, *slugs.values()}
    names: dict[str, set[str]] = {'validating': set(), 'mutating': set()}
    webhooks: list[Webhook] = []
    for (id_, reason, _), members in groups.items():
        slug = slugs[id_]
        if sum(id_ == other for other, _, _ in groups) == 1:
            path = id_ if _URL_PATH.fullmatch(id_) else slug
        else:
            numbered = (f'{slug}-{number}' for number in itertools.count(1))
            path = slug = next(each for each in numbered if each not in used)
            used.add(slug)
        name = slugs[id_] if slugs[id_] not in names[reason] else slug
        names[reason].add(name)
        webhooks.append(Webhook(path=path, slug=slug, name=name, members=tuple(members)))
    return webhooks


def describe_options(handler: handlers.WebhookHandler) -> str:
    """Serialise those options of a handler that a webhook has once, for comparison."""
    return json.dumps([
        bool(handler.persistent), bool(handler.side_effects), bool(handler.ignore_failures),
        build_selector(handler.labels)])


def make_slug(id_: str) -> str:
    """Make a DNS subdomain of a handler id."""
    slug = id_.replace('_', '-').replace('/', '.')
    if _SLUG.fullmatch(slug) and len(slug) <= MAX_SLUG:
        return slug
    parts = (re.sub(r'[^a-z0-9]+', '-', part.lower()).strip('-') for part in slug.split('.'))
    return _add_hash('.'.join(filter(None, parts)), id_)


def _add_hash(slug: str, id_: str) -> str:
    digest = hashlib.sha256(id_.encode(errors='surrogatepass')).hexdigest()[:8]
    return '-'.join(filter(None, [slug[:MAX_SLUG - 9].rstrip('.-'), digest]))


def build_configuration(
        webhooks: Iterable[Webhook],
        bound: Mapping[references.Resource, Collection[handlers.WebhookHandler]],
        *,
        managed: str,
        client_config: reviews.WebhookClientConfig,
) -> list[dict[str, Any]]:
    """
    Make the field ``webhooks`` of a webhook configuration.

    Webhooks whose handlers match no resource of the cluster are left out.
    """
    records: list[dict[str, Any]] = []
    for webhook in webhooks:
        rules = build_rules(webhook.members, bound)
        if rules:
            record: dict[str, Any] = {
                'name': make_full_name(webhook.name, managed),
                'sideEffects': 'NoneOnDryRun' if webhook.sample.side_effects else 'None',
                'failurePolicy': 'Ignore' if webhook.sample.ignore_failures else 'Fail',
                'matchPolicy': 'Equivalent',
                'rules': rules,
                'clientConfig': append_path(client_config, webhook.path, webhook.slug),
                'timeoutSeconds': TIMEOUT,
                'admissionReviewVersions': ['v1', 'v1beta1'],
            }
            expressions = build_selector(webhook.sample.labels)
            if expressions:
                record['objectSelector'] = {'matchExpressions': expressions}
            records.append(record)
    return records


def make_full_name(name: str, managed: str) -> str:
    """Append the configuration's name, and a domain if there are too few parts otherwise."""
    full = f'{name}.{managed}'
    if full.count('.') + 1 < MIN_LABELS:
        full = f'{full}.{FALLBACK_DOMAIN}'
    return full[-MAX_NAME:].lstrip('.-')


def build_rules(
        members: Iterable[handlers.WebhookHandler],
        bound: Mapping[references.Resource, Collection[handlers.WebhookHandler]],
) -> list[dict[str, Any]]:
    """Make the rules of a webhook: its resources and operations, in a stable order, each once."""
    rules: dict[str, dict[str, Any]] = {}
    ordered = sorted(bound, key=lambda r: (r.group, r.plural, r.version))
    for handler in members:
        for resource in ordered:
            if handler in bound[resource]:
                rule = {
                    'apiGroups': [resource.group],
                    'apiVersions': [resource.version],
                    'resources': _list_resources(resource, handler.subresource),
                    'operations': ['*'] if handler.operations is None else [
                        operation for operation in OPERATIONS if operation in handler.operations],
                    'scope': '*',
                }
                rules.setdefault(json.dumps(rule), rule)
    return list(rules.values())


def _list_resources(resource: references.Resource, subresource: str | None) -> list[str]:
    match subresource:
        case None:
            return [resource.plural]
        case '*':
            return [resource.plural, f'{resource.plural}/*']
        case _:
            return [f'{resource.plural}/{subresource}']


def build_selector(labels: handlers.MetaFilter | None) -> list[dict[str, Any]]:
    """
    Translate a filter of labels into ``matchExpressions``, as far as possible.

    Callbacks and invalid labels are left out: the operator itself checks them at each review.
    """
    expressions: list[dict[str, Any]] = []
    for key, criterion in (labels or {}).items():
        if not _is_label_key(key):
            continue
        if criterion is handlers.PRESENT:
            expressions.append({'key': key, 'operator': 'Exists'})
        elif criterion is handlers.ABSENT:
            expressions.append({'key': key, 'operator': 'DoesNotExist'})
        elif isinstance(criterion, str) and (not criterion or _LABEL_NAME.fullmatch(criterion)):
            expressions.append({'key': key, 'operator': 'In', 'values': [criterion]})
    return expressions


def _is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition('/')
    is_fitting = not slash or _LABEL_PREFIX.fullmatch(prefix) is not None
    return is_fitting and _LABEL_NAME.fullmatch(name) is not None


def append_path(
        config: reviews.WebhookClientConfig, path: str, slug: str | None = None,
) -> reviews.WebhookClientConfig:
    """Append a path to the URL, and to the path of the service: there, the slug, if it is given."""
    result = config.copy()
    url, service = config.get('url'), config.get('service')
    if url is not None:
        result['url'] = f"{url.rstrip('/')}/{path}"
    if service is not None:
        root = (service.get('path') or '').rstrip('/')
        result['service'] = {**service, 'path': f"{root}/{slug or path}"}
    return result
