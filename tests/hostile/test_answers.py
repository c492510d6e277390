"""
Answers to writes: whatever the API answers to those of one object, the others are handled, the
operator lives on, and nothing is sent in a hurry.
"""
import json

from hypothesis import example, given
from hypothesis import strategies as st

import kopf
from kopf._cogs.clients import errors
from kopf.testing import virtual_time
from tests.hostile import anything, worlds

BAD = '/apis/kopf.dev/v1/namespaces/default/kopfexamples/bad'
OBJECT = {
    'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
    'metadata': {
        'name': 'bad', 'namespace': 'default', 'uid': 'u', 'resourceVersion': '5',
        'labels': {'a': 'b'}, 'annotations': {'kopf.zalando.org/good': '{}'}, 'finalizers': ['f']},
    'spec': {'field': 'value'}, 'status': {'field': 'value'}}
STATUS = {
    'kind': 'Status', 'apiVersion': 'v1', 'status': 'Failure', 'code': 409, 'reason': 'Conflict',
    'message': 'text', 'details': {'retryAfterSeconds': 5, 'causes': [{'field': 'x'}]}}

answers = st.binary(max_size=20) | anything.nested_values.map(anything.encode).map(str.encode) | (
    anything.damaged(OBJECT, inner=anything.nested_values).map(anything.encode).map(str.encode)) | (
    anything.damaged(STATUS).map(json.dumps).map(str.encode))
codes = st.sampled_from([200, 201, 400, 403, 404, 409, 410, 413, 418, 422, 429, 500, 503, 600])


@given(answers, codes)
@example(b'[]', 200)
@example(b'null', 200)
@example(b'{"metadata": {"name": "bad", "uid": []}}', 200)
@virtual_time
async def test_any_answers_to_the_writes_of_one_object(answer, code):
    registry = worlds.make_registry()

    @kopf.on.create('kopfexamples', registry=registry)
    async def transform(patch, **_):
        patch.fns.append(lambda body: body.update(other=1))

    @kopf.on.event('kopfexamples', registry=registry)
    async def note(patch, **_):
        patch.status['noted'] = True

    @kopf.on.delete('kopfexamples', registry=registry)
    async def delete(**_):
        pass

    async with worlds.open_world(registry) as world:
        world.liar.lie(lambda method, path: path.startswith(BAD), lambda _: answer)
        world.liar.statuses[BAD] = code
        await world.create('bad')
        await world.create('good')
        await world.wait_handled('good')
        asked, said = await world.rest(600)
        assert asked < 600 and said < 1500, (asked, said, world.show())
        world.liar.lies.clear()
        world.liar.statuses.clear()
        await world.rest(600)
        await world.api.sandbox.patch('kopfexamples', 'bad', {'spec': {'field': 2}})
        await world.create('later')
        await world.wait_handled('later')


@given(answers, st.integers(0, 1000), st.none() | st.text() | st.sampled_from([
    '5', '-5', '1e400', 'nan', '9' * 5000, 'Wed, 21 Oct 2015 07:28:00 GMT', '٣']))
def test_any_errors(body, status, retry_after):
    error = errors.make_error(status, body, retry_after=retry_after)
    assert isinstance(error, errors.APIError)
    assert str(error) and repr(error) and isinstance(error.code, int)
    assert error.reason is None or isinstance(error.reason, str)
    assert error.retry_after is None or 0 <= error.retry_after <= errors.MAX_RETRY_AFTER
