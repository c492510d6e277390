import json
import logging
from types import SimpleNamespace

import pytest

from kopf import OperatorSettings
from kopf._cogs.clients import errors
from kopf._cogs.structs.patches import Patch
from kopf._cogs.structs.references import Resource
from kopf._core.actions.application import (
    PatchError,
    Target,
    apply,
    describe_inconsistencies,
    find_inconsistencies,
    is_in_place,
)
from kopf._core.actions.observers import NOBODY


@pytest.mark.parametrize(('patch', 'expected'), [
    (Patch(), True),
    (Patch({'spec': {'f': 1}}), True),
    (Patch({'spec': {'g': None}}), True),
    (Patch({'spec': {'f': 2}}), False),
    (Patch({'spec': {'f': None}}), False),
    (Patch(fns=[lambda body: None]), False),  # what it does is not known before it is called
])
def test_nothing_is_sent_if_the_object_is_already_so(patch, expected):
    assert is_in_place({'metadata': {}, 'spec': {'f': 1}}, patch) is expected


def test_patches_that_are_nested_too_deeply_are_refused():
    deep = {}
    for _ in range(100_000):
        deep = {'f': deep}
    with pytest.raises(PatchError):
        is_in_place({'metadata': {}}, Patch({'spec': deep}))


RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample')
LACK = ("Usually, the schema of kopfexamples in kopf.dev/v1 lacks this: add it there, or set "
        "x-kubernetes-preserve-unknown-fields.")
OTHER = "Usually, others have changed this at the same time, or an admission webhook has."


@pytest.mark.parametrize(('patch', 'result', 'expected'), [
    ({'status': {'a': 1}}, {}, f"not stored: status. {LACK}"),
    ({'status': {'a': 1, 'b': {'c': 2}}}, {'status': {'b': {}}},
     f"not stored: status.a, status.b.c. {LACK}"),
    ({'spec': {'a': 1}}, {'spec': {'a': 'secret'}},
     f"stored with another value: spec.a. {OTHER}"),
    ({'spec': {'a': 1}, 'status': {'b': 1}}, {'spec': {'a': 2}, 'status': {}},
     f"not stored: status.b. {LACK} stored with another value: spec.a. {OTHER}"),
    ({'status': {f'f{i}': 1 for i in range(10)}}, {'status': {}},
     f"not stored: status.f0, status.f1, status.f2, status.f3, status.f4, and 5 more. {LACK}"),
    ({'metadata': {'annotations': {'a': 'b'}}}, {'metadata': {}},
     "not stored: metadata.annotations. Usually, an admission webhook removes this."),
    ({'metadata': {'labels': {'a': 'b'}, 'other': 'x'}}, {'metadata': {'labels': {}}},
     f"not stored: metadata.other, metadata.labels.a. {LACK}"),
    ({'status': {1: {2: 3}}}, {'status': {}}, f"not stored: status.1. {LACK}"),
])
def test_what_is_not_stored_is_described_without_values(patch, result, expected):
    remaining = find_inconsistencies(patch, result)
    assert describe_inconsistencies(remaining, RESOURCE) == expected


@pytest.mark.parametrize(('patch', 'result'), [
    ({}, {'spec': {'a': 1}}), ({'spec': {'a': 1}}, {'spec': {'a': 1, 'b': 2}}),
    ({'spec': {'a': None}}, {'spec': {}}), ({'status': {}}, {}),
    ({'status': {'a': (1, 2), 3: 4}}, {'status': {'a': [1, 2], '3': 4}}),
])
def test_what_is_stored_is_no_inconsistency(patch, result):
    assert not find_inconsistencies(patch, result)


def test_core_resources_are_described_by_their_version():
    remaining = find_inconsistencies({'status': {'a': 1}}, {})
    text = describe_inconsistencies(remaining, Resource('', 'v1', 'pods', kind='Pod'))
    assert "the schema of pods in v1 lacks" in text


LOST = errors.APIConnectionError("there was no response")
SHOWN = {'metadata': {'name': 'obj', 'uid': 'u', 'resourceVersion': '1'}}
NEWER = {'metadata': {**SHOWN['metadata'], 'resourceVersion': '2'}}


def conflict(**kwargs):
    return errors.APIConflictError("no", status=409, **kwargs)


def make_target(writes, reads):
    """A target whose requests have these results, one after another."""
    async def request(method, *_, **__):
        if method != 'GET':
            raise writes.pop(0)
        found = reads.pop(0)
        if isinstance(found, Exception):
            raise found
        return json.dumps({'metadata': {'resourceVersion': '9'}, 'items': [found]}).encode()

    client = SimpleNamespace(
        request=request, settings=OperatorSettings(), unselectable=set())
    return Target(client, RESOURCE, logging.getLogger(), NOBODY)


@pytest.mark.parametrize('patch', [
    Patch({'spec': {'f': 1}}), Patch(fns=[lambda body: body.update(spec={})]),
], ids=['merged', 'transformed'])
@pytest.mark.parametrize(('writes', 'reads'), [
    ([conflict(earlier=LOST)], [conflict()]),
    ([conflict(earlier=LOST)], [SHOWN]),
    ([conflict(earlier=LOST), conflict()], [NEWER, NEWER]),
], ids=['unread', 'behind', 'behind-again'])
async def test_conflicts_tell_that_an_earlier_attempt_could_be_applied(patch, writes, reads):
    with pytest.raises(errors.APIConflictError) as caught:
        await apply(make_target(list(writes), list(reads)), SHOWN, patch)
    assert caught.value.earlier is LOST


@pytest.mark.parametrize('patch', [
    Patch({'metadata': {'resourceVersion': '0', 'labels': {'a': 'b'}}}),
    Patch({'metadata': {'resourceVersion': '0'}, 'spec': {'f': 1}}),
])
async def test_the_version_in_a_copied_body_is_not_sent(patch):
    sent = []

    async def request(method, *_, body, **__):
        sent.append(json.loads(body)['metadata'])
        return SHOWN

    client = SimpleNamespace(request=request, settings=OperatorSettings(), unselectable=set())
    await apply(Target(client, RESOURCE, logging.getLogger(), NOBODY), SHOWN, patch)
    assert ['resourceVersion' in meta for meta in sent] == [False]
