"""
Admission reviews: whoever can reach the webhooks can send anything. The answer is a proper review,
or HTTP 400 or 404; and what is proper is answered afterwards.
"""
import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.serving import exchanges
from kopf._cogs.structs.references import Resource
from kopf._core.actions.execution import Context
from kopf._core.engines.admission import webhooks
from kopf._core.engines.admission.reviewing import Reviewer
from kopf._kits.webhooks import httpreviews
from tests.hostile import anything

RESOURCE = Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample', namespaced=True)
REVIEW = {
    'apiVersion': 'admission.k8s.io/v1', 'kind': 'AdmissionReview', 'request': {
        'uid': 'u', 'kind': {'group': 'kopf.dev', 'version': 'v1', 'kind': 'KopfExample'},
        'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'},
        'subResource': None, 'name': 'x', 'namespace': 'default', 'operation': 'UPDATE',
        'userInfo': {'username': 'me', 'groups': ['all']}, 'dryRun': False, 'options': {},
        'object': {
            'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'spec': {'field': [1]},
            'metadata': {'name': 'x', 'namespace': 'default', 'uid': 'v', 'labels': {'a': 'b'},
                         'annotations': {'a': 'b'}, 'ownerReferences': [{}]}},
        'oldObject': {
            'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'spec': {'field': [2]},
            'metadata': {'name': 'x', 'namespace': 'default', 'uid': 'v'}}}}

texts = anything.damaged(REVIEW, inner=anything.nested_values).map(anything.encode).map(
    str.encode) | anything.damaged(REVIEW).map(json.dumps).map(str.encode) | st.binary(max_size=50)
paths = st.sampled_from(['', 'validate', 'mutate', 'other', '%00', 'a/b']) | st.text(max_size=5)


def make_reviewer():
    registry = kopf.OperatorRegistry()

    @kopf.on.validate('kopfexamples', registry=registry, labels={'a': kopf.PRESENT})
    async def validate(body, spec, diff, old, new, meta, uid, name, userinfo, warnings, **_):
        str(body), str(spec), str(diff), str(old), str(new), str(meta), uid, name, userinfo
        warnings.append(str(meta.annotations))

    @kopf.on.mutate('kopfexamples', registry=registry, annotations={'a': 'b'})
    @kopf.on.mutate('kopfexamples', registry=registry, id='always')
    async def mutate(spec, patch, **_):
        patch.spec['added'] = {'field': spec.get('field')}

    handlers = list(registry._webhooks)
    return Reviewer(
        directory=webhooks.Directory(handlers),
        context=Context(settings=kopf.OperatorSettings(), clock=Clock(), indices={}),
        find=lambda resource: (RESOURCE, handlers) if resource == RESOURCE else None,
        get_memo=lambda resource, uid: kopf.Memo(uid=uid))


def send(service, path, text):
    request = exchanges.Request(
        'POST', f'/{path}', [('Content-Type', 'application/json')], None,
        read=lambda: asyncio.sleep(0, text))
    try:
        return asyncio.run(service(request))
    except exchanges.Refusal as e:
        return exchanges.Response(e.status, str(e).encode(errors='replace'))


@given(texts, paths)
def test_anything_in_reviews(text, path):
    service = httpreviews.Reviews(make_reviewer(), root='')
    answer = send(service, path, text)
    assert answer.status in (200, 400, 404)
    if answer.status == 200:
        review = json.loads(answer.body)
        assert review['kind'] == 'AdmissionReview'
        assert isinstance(review['response']['uid'], str)
        assert isinstance(review['response']['allowed'], bool)
    else:
        assert 0 < len(answer.body) < 1000
    assert json.loads(send(service, '', json.dumps(REVIEW).encode()).body)['response']['allowed']
