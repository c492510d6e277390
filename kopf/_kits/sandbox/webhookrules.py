"""
What is wrong with configurations of webhooks, with the API's messages.
"""
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import naming, selecting, wordings
from kopf._kits.sandbox.statuses import Cause, Obj

VERSIONS = ('v1', 'v1beta1')
SIDE_EFFECTS = ('None', 'NoneOnDryRun')
MAX_TIMEOUT = 30  # seconds


def validate(config: Obj) -> Iterator[Cause]:
    """All findings, in the order of the webhooks."""
    names: set[str] = set()
    for index, webhook in enumerate(config.get('webhooks') or ()):
        field = f'webhooks[{index}]'
        yield from _check_name(webhook.get('name') or '', f'{field}.name', names)
        yield from _check_versions(webhook, f'{field}.admissionReviewVersions')
        yield from wordings.one_of(
            f'{field}.sideEffects', webhook.get('sideEffects'), SIDE_EFFECTS,
            f"must specify one of {', '.join(SIDE_EFFECTS)}")
        for name in ('namespaceSelector', 'objectSelector'):
            yield from selecting.check_expressions(webhook.get(name), f'{field}.{name}')
        timeout = webhook.get('timeoutSeconds')
        if timeout is not None and not 1 <= timeout <= MAX_TIMEOUT:
            yield wordings.invalid(f'{field}.timeoutSeconds', timeout,
                                   "the timeout value must be between 1 and 30 seconds")
        yield from _check_client(webhook.get('clientConfig') or {}, f'{field}.clientConfig')


def _check_name(name: str, field: str, names: set[str]) -> Iterator[Cause]:
    if not name:
        yield wordings.required(field)
        return
    problems = naming.check_subdomain(name)
    yield from wordings.all_invalid(field, name, problems)
    if not problems and name.count('.') < 2:
        yield wordings.invalid(
            field, name, "should be a domain with at least three segments separated by dots")
    if name in names:
        yield wordings.duplicate(field, name)
    names.add(name)


def _check_versions(webhook: Mapping[str, Any], field: str) -> Iterator[Cause]:
    versions = webhook.get('admissionReviewVersions') or []
    if not versions:
        yield wordings.required(field, f"must specify one of {', '.join(VERSIONS)}")
    elif not set(versions) & set(VERSIONS):
        yield wordings.invalid(
            field, versions, f"must include at least one of {', '.join(VERSIONS)}")


def _check_client(client: Mapping[str, Any], field: str) -> Iterator[Cause]:
    url, service = client.get('url'), client.get('service')
    if bool(url) == bool(service):
        yield wordings.required(field, "exactly one of url or service is required")
    elif url:
        form = "desired format: https://host[/path]"
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as e:
            yield wordings.required(f'{field}.url', f"url must be a valid URL: {e}; {form}")
            return
        if parts.scheme != 'https':
            yield wordings.invalid(f'{field}.url', parts.scheme,
                                 f"'https' is the only allowed URL scheme; {form}")
        if not parts.hostname:
            yield wordings.invalid(f'{field}.url', parts.netloc, f"host must be specified; {form}")
