"""
Snapshots of a cluster, and the comparison of two of them, regardless of times and identifiers.
"""
import base64
import collections
import contextlib
import dataclasses
import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import yaml

from kopf._kits.external import records

IGNORED_RESOURCES = ('events', 'leases', 'kopfpeerings', 'clusterkopfpeerings')
"""The resources whose objects are not a result of the operator's work."""

IGNORED_METADATA = (
    'uid', 'resourceVersion', 'generation', 'creationTimestamp', 'managedFields', 'selfLink')
IGNORED_ANNOTATIONS = ('kopf.dev/applied', 'kopf.dev/webhooks-of')
"""They contain uids as digests, or name one run of an operator."""

WEBHOOKS = ('validatingwebhookconfigurations', 'mutatingwebhookconfigurations')

PORT = re.compile(r'(?<=\w):\d+(?=/|$)')

TIME = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)')
GENERATION = re.compile(r'"observedGeneration": \d+')

GENERATED = '(generated)'

MIN_HIDDEN = 6
"""From which length on generated values are replaced: shorter ones can be a part of anything."""

Snapshot = Mapping[str, str]
"""The objects as JSON, by their resources, namespaces, and names."""


def take(
        objects: Collection[tuple[str, dict[str, Any]]], *, ignore: Collection[str] = (),
        made: Collection[Any] = (),
) -> Snapshot:
    """
    Take a snapshot of objects, which come with the plural names of their resources.

    What remains of them has no uids, versions, and times.

    ``ignore`` are the fields that are left out: ``'status.attempts'``, or only of one resource:
    ``'configmaps:data.time'``. Objects whose names are left out are compared by their number.
    ``made`` are the generated values of this run; they are replaced in all fields.
    """
    objects = [(plural, obj) for plural, obj in objects if plural not in IGNORED_RESOURCES]
    names = {
        obj['metadata']['uid']: f"(uid of {plural}/{obj['metadata']['name']})"
        for plural, obj in objects}
    for plural, obj in objects:
        for token in _reduce_records(obj['metadata'].get('annotations') or {}):
            names[token] = f"(token of {plural}/{obj['metadata']['name']})"
    for value in made:
        if isinstance(value, str | bytes) and len(value) >= MIN_HIDDEN:
            if isinstance(value, str):
                names[json.dumps(value)[1:-1]] = GENERATED
                value = value.encode()
            names[base64.b64encode(value).decode()] = GENERATED
    found: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    for plural, obj in objects:
        meta = obj['metadata']
        if meta.get('generateName'):
            meta['name'] = f"{meta['generateName']}*"
        for field in IGNORED_METADATA:
            meta.pop(field, None)
        for annotation in IGNORED_ANNOTATIONS:
            meta.get('annotations', {}).pop(annotation, None)
        for config in _find_servers(plural, obj):
            if 'caBundle' in config:
                config['caBundle'] = '(certificates)'
            if 'url' in config:
                config['url'] = PORT.sub(':(port)', config['url'], count=1)
        for path in ignore:
            where, _, fields = path.rpartition(':')
            if where in ('', plural):
                _remove(obj, fields.split('.'))
        name = meta.get('name', '*')
        namespace = f"{meta['namespace']}/" if meta.get('namespace') else ''
        found[f'{plural} {namespace}{name}'].append(_normalize(obj, names))
    return {
        f'{key} #{number}' if len(texts) > 1 else key: text
        for key, texts in found.items() for number, text in enumerate(sorted(texts), start=1)}


def _find_servers(plural: str, obj: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Find the addresses and certificates of webhook servers: each run has its own."""
    if plural in WEBHOOKS:
        yield from (webhook['clientConfig'] for webhook in obj.get('webhooks', ()))
    if plural == 'customresourcedefinitions':
        webhook = obj['spec'].get('conversion', {}).get('webhook', {})
        yield from filter(None, [webhook.get('clientConfig')])


def _reduce_records(annotations: dict[str, str]) -> Iterable[str]:
    """Leave of the records of externals what does not depend on attempts; yield their tokens."""
    for key, text in annotations.items():
        if key.startswith(f'{records.PREFIX}/'):
            with contextlib.suppress(ValueError):  # what people ask for
                record = records.decode(text)
                annotations[key] = dataclasses.replace(record, attempt=0, by=None).encode()
                if record.token is not None:
                    yield record.token


def _remove(obj: Any, path: list[str]) -> None:
    *parents, last = path
    for name in parents:
        obj = obj.get(name) if isinstance(obj, dict) else None
    if isinstance(obj, dict):
        obj.pop(last, None)


def _normalize(obj: Any, names: Mapping[str, str]) -> str:
    status = obj.get('status')
    if isinstance(status, dict) and isinstance(status.get('conditions'), list):
        status['conditions'].sort(key=_get_type)  # their order means nothing
    text = json.dumps(obj, sort_keys=True)
    for uid, name in names.items():
        text = text.replace(uid, name)
    return GENERATION.sub('"observedGeneration": "(generation)"', TIME.sub('(time)', text))


def _get_type(condition: Any) -> str:
    return str(condition.get('type') if isinstance(condition, dict) else condition)


def _show(text: str) -> str:
    """Show an object as YAML: only where it differs, as this takes a while."""
    return yaml.safe_dump(json.loads(text), sort_keys=True, width=100)


def compare(expected: Snapshot, actual: Snapshot) -> list[str]:
    """Describe the differences: one text for each object that differs."""
    return list(_iter_differences(expected, actual))


def _iter_differences(expected: Snapshot, actual: Snapshot) -> Iterable[str]:
    for key in sorted(expected.keys() - actual.keys()):
        yield f"{key} is missing."
    for key in sorted(actual.keys() - expected.keys()):
        yield f"{key} is there, but should not be:\n{_show(actual[key])}"
    for key in sorted(expected.keys() & actual.keys()):
        if expected[key] != actual[key]:
            before, after = (_show(snapshot[key]).splitlines() for snapshot in (expected, actual))
            lines = difflib.unified_diff(before, after, lineterm='', n=2)
            yield '\n'.join([f"{key} differs:", *list(lines)[2:]])
