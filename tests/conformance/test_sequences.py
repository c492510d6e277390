"""
Random sequences of operations on both servers: equal answers, and equal streams of events.
"""
import json
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kopf.testing import run_sandbox
from tests.conformance.apis import APPLY, JSONPATCH, MERGE, Api, make, unique
from tests.conformance.conftest import load_real_config
from tests.conformance.kinds import Kinds, make_crds

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GROUP = f'{unique("seq")}.test'


@pytest.fixture(scope='module')
def servers():
    """Clients of both servers, which serve the same kinds."""
    config = load_real_config()
    kinds = Kinds(GROUP)
    with run_sandbox() as sandbox:
        apis = [Api(sandbox.kubeconfig()), Api(config)]
        try:
            for api in apis:
                for crd in make_crds(kinds):
                    api.post(kinds.crds, crd).ok
                things = kinds.path('things', namespace='default')
                first = kinds.make('things', 'first', **kinds.example)
                api.wait(things, lambda _, api=api: api.post(things, first).status == 201)
            yield apis
        finally:
            for api in apis:
                for crd in make_crds(kinds):
                    api.delete(f"{kinds.crds}/{crd['metadata']['name']}")
                api.close()


names = st.sampled_from(['a', 'b'])
keys = st.sampled_from(['x', 'y'])
values = st.sampled_from(['1', '2'])
datas = st.dictionaries(keys, values, max_size=2)
finalizers = st.sampled_from([[], ['x.test/f'], ['x.test/f', 'x.test/g']])
metas = st.fixed_dictionaries({}, optional={
    'labels': datas, 'annotations': datas, 'finalizers': finalizers})
specs = st.fixed_dictionaries({}, optional={
    'size': st.sampled_from([1, 5, 11, 'x', None]), 'color': st.sampled_from(['red', 'blue', None]),
    'tags': st.lists(values, max_size=2), 'unknown': values, 'nested': datas,
    'ports': st.lists(st.fixed_dictionaries({'name': keys}, optional={
        'port': st.integers(1, 2)}), max_size=2),
})
managers = st.sampled_from(['m', 'n'])
operations = st.one_of(
    st.tuples(st.just('create'), names, metas, datas),
    st.tuples(st.just('create thing'), names, metas, specs),
    st.tuples(st.just('replace'), names, metas, datas),
    st.tuples(st.just('merge'), names, metas, datas),
    st.tuples(st.just('merge thing'), names, metas, specs),
    st.tuples(st.just('json'), names, st.sampled_from(['add', 'remove', 'replace', 'test']), keys),
    st.tuples(st.just('apply'), names, managers, datas, st.booleans()),
    st.tuples(st.just('apply thing'), names, managers, specs, st.booleans()),
    st.tuples(st.just('status'), names, values),
    st.tuples(st.just('delete'), names, st.booleans()),
    st.tuples(st.just('list'), keys, values),
)


def perform(api, ns, operation):
    core = f'/api/v1/namespaces/{ns}/configmaps'
    kinds = Kinds(GROUP)
    custom = kinds.path('things', namespace=ns)
    match operation:
        case 'create', name, meta, data:
            return api.post(core, make(name, metadata=meta, data=data))
        case 'create thing', name, meta, spec:
            return api.post(custom, kinds.make('things', name, metadata=meta, spec=spec))
        case 'replace', name, meta, data:
            return api.put(f'{core}/{name}', make(name, metadata=meta, data=data))
        case 'merge', name, meta, data:
            return api.patch(f'{core}/{name}', {'metadata': meta, 'data': data}, MERGE)
        case 'merge thing', name, meta, spec:
            return api.patch(f'{custom}/{name}', {'metadata': meta, 'spec': spec}, MERGE)
        case 'json', name, op, key:
            ops = [{'op': op, 'path': f'/data/{key}', 'value': '1'}]
            return api.patch(f'{core}/{name}', ops, JSONPATCH)
        case 'apply', name, manager, data, force:
            return api.patch(f'{core}/{name}', make(name, data=data), APPLY,
                             fieldManager=manager, force=str(force).lower())
        case 'apply thing', name, manager, spec, force:
            return api.patch(f'{custom}/{name}', kinds.make('things', name, spec=spec), APPLY,
                             fieldManager=manager, force=str(force).lower())
        case 'status', name, phase:
            return api.patch(f'{custom}/{name}/status', {'status': {'phase': phase}}, MERGE)
        case 'delete', name, is_core:
            return api.delete(f'{core if is_core else custom}/{name}')
        case 'list', key, value:
            return api.get(core, labelSelector=f'{key}={value}')


def unordered(answer):
    """Without the order of errors, which differs from one time to another in the real API, too."""
    causes = (answer.get('details') or {}).get('causes') or []
    if len(causes) > 1:
        causes.sort(key=lambda cause: (cause.get('field') or '', cause['message']))
        answer['message'] = sorted(answer['message'])
    if str(answer.get('message')).startswith('failed to create typed patch object'):
        answer['message'] = answer['message'].partition(': ')[0]
    return answer


class Normal:
    """Replaces what may differ: identities are numbered as they come, versions as they grow."""

    def __init__(self, ns):
        self._ns = ns
        self._uids = {}

    def __call__(self, value):
        text = json.dumps(value, sort_keys=True).replace(self._ns, 'NS')
        text = re.sub(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', self._number, text)
        text = re.sub(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', 'TIME', text)
        return json.loads(re.sub(r'"resourceVersion": "\d+"', '"resourceVersion": "RV"', text))

    def _number(self, match):
        return f'uid{self._uids.setdefault(match.group(), len(self._uids))}'


@given(sequence=st.lists(operations, min_size=3, max_size=12))
@settings(max_examples=40)
def test_both_servers_answer_the_same_and_tell_of_the_same(servers, sequence):
    outcomes = []
    for api in servers:
        ns = unique('seq')
        api.post('/api/v1/namespaces', make(ns, kind='Namespace')).ok
        normal, answers, events = Normal(ns), [], []
        paths = [f'/api/v1/namespaces/{ns}/configmaps',
                 Kinds(GROUP).path('things', namespace=ns)]
        began = [api.get(path).ok['metadata']['resourceVersion'] for path in paths]
        for operation in sequence:
            answer = perform(api, ns, operation)
            warnings = sorted(answer.headers.get_all('Warning') or [])
            answers.append((operation, answer.status, normal(unordered(answer.json)), warnings))
        for path, version in zip(paths, began, strict=True):
            plural = path.rpartition('/')[2]
            last = {'configmaps': make('last'), 'things': Kinds(GROUP).make(
                'things', 'last', spec={'size': 1})}[plural]
            api.post(path, last).ok
            with api.watch(path, resourceVersion=version) as watch:
                for event in watch:
                    if event['object']['metadata']['name'] == 'last':
                        break
                    events.append(normal(event))
            for item in api.get(path).ok['items']:
                if item['metadata'].get('finalizers'):
                    api.patch(f"{path}/{item['metadata']['name']}",
                              {'metadata': {'finalizers': None}}).ok
        api.delete(f'/api/v1/namespaces/{ns}')
        outcomes.append((answers, events))
    (sandboxed, told), (real, truly_told) = outcomes
    for ours, theirs in zip(sandboxed, real, strict=True):
        assert ours == theirs
    assert told == truly_told
