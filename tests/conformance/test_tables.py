import pytest

from tests.conformance.apis import TABLE, make


def test_a_list_is_told_as_a_table(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    api.patch(f'{things}/one/status', {'status': {'phase': 'here'}}).ok
    answer = api.get(things, accept=TABLE)
    table = answer.ok
    assert (table['kind'], table['apiVersion']) == ('Table', 'meta.k8s.io/v1')
    assert [(item['name'], item['type'], item['priority'])
            for item in table['columnDefinitions']] == [
        ('Name', 'string', 0), ('Size', 'integer', 0), ('Phase', 'string', 0),
        ('Color', 'string', 1), ('Age', 'date', 0), ('Note', 'string', 0)]
    [row] = table['rows']
    assert row['cells'][:4] == ['one', 3, 'here', 'red']
    assert row['object']['kind'] == 'PartialObjectMetadata'
    assert row['object']['metadata']['name'] == 'one'
    assert int(table['metadata']['resourceVersion']) > 0


def test_the_ages_are_told_in_short(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    age = api.get(things, accept=TABLE).ok['rows'][0]['cells'][4]
    assert age.endswith('s') and age[:-1].isdigit()


def test_descriptions_of_columns_are_told(api, things):
    columns = api.get(things, accept=TABLE).ok['columnDefinitions']
    assert columns[2]['description'] == 'where it is'
    assert columns[0]['format'] == 'name'


def test_dots_in_the_names_of_fields_are_escaped(api, things, kinds):
    api.post(things, {**kinds.make('things', 'one', spec={'size': 3}), 'metadata': {
        'name': 'one', 'annotations': {'g.test/note': "it is red"}}}).ok
    assert api.get(things, accept=TABLE).ok['rows'][0]['cells'][5] == "it is red"


def test_absent_values_are_null(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    assert api.get(things, accept=TABLE).ok['rows'][0]['cells'][2] is None


def test_one_object_is_told_as_a_table(api, things, kinds):
    api.post(things, kinds.make('things', 'one', spec={'size': 3})).ok
    table = api.get(f'{things}/one', accept=TABLE).ok
    assert (table['kind'], len(table['rows'])) == ('Table', 1)


def test_kinds_without_columns_have_names_and_ages(api, frees, kinds):
    api.post(frees, kinds.make('frees', 'one')).ok
    table = api.get(frees, accept=TABLE).ok
    assert [item['name'] for item in table['columnDefinitions']] == ['Name', 'Age']


def test_an_empty_table_has_columns(api, frees):
    table = api.get(frees, accept=TABLE).ok
    assert table['rows'] == []
    assert table['columnDefinitions']


@pytest.mark.parametrize(('include', 'kind'), [
    ('Object', 'ConfigMap'), ('Metadata', 'PartialObjectMetadata'), ('None', None)])
def test_what_is_in_the_rows_can_be_chosen(api, cms, include, kind):
    api.post(cms, make('one', data={'a': 'b'})).ok
    [row] = api.get(cms, accept=TABLE, includeObject=include).ok['rows']
    obj = row.get('object')
    assert (obj or {}).get('kind') == kind


def test_errors_are_no_tables(api, cms):
    assert api.get(f'{cms}/absent', accept=TABLE).error == (404, 'NotFound')


@pytest.mark.parametrize(('plural', 'body', 'columns', 'cells'), [
    ('configmaps', make('one', data={'a': 'b', 'c': 'd'}), ['Name', 'Data', 'Age'], ['one', 2]),
    ('secrets', make('one', kind='Secret', stringData={'a': 'b'}),
     ['Name', 'Type', 'Data', 'Age'], ['one', 'Opaque', 1]),
    ('serviceaccounts', make('one', kind='ServiceAccount'), None, ['one']),
    ('services', make('one', kind='Service', spec={
        'type': 'ExternalName', 'externalName': 'x.test'}),
     ['Name', 'Type', 'Cluster-IP', 'External-IP', 'Port(s)', 'Age', 'Selector'],
     ['one', 'ExternalName', '<none>', 'x.test', '<none>']),
    ('pods', make('one', kind='Pod', spec={'containers': [{'name': 'a', 'image': 'x'}]}),
     ['Name', 'Ready', 'Status', 'Restarts', 'Age', 'IP', 'Node', 'Nominated Node',
      'Readiness Gates'], ['one', '0/1', 'Pending', '0']),
])
def test_core_kinds_have_their_own_columns(api, ns, plural, body, columns, cells):
    path = f'/api/v1/namespaces/{ns}/{plural}'
    api.post(path, body).ok
    table = api.get(path, accept=TABLE).ok
    names = [item['name'] for item in table['columnDefinitions']]
    assert columns is None or names == columns
    assert table['rows'][-1]['cells'][:len(cells)] == cells


def test_deployments_tell_how_many_are_ready(api, ns):
    path = f'/apis/apps/v1/namespaces/{ns}/deployments'
    api.post(path, make('one', kind='Deployment', version='apps/v1', spec={
        'replicas': 3, 'selector': {'matchLabels': {'a': 'b'}},
        'template': {'metadata': {'labels': {'a': 'b'}},
                     'spec': {'containers': [{'name': 'c', 'image': 'i'}]}}})).ok
    table = api.get(path, accept=TABLE).ok
    assert [item['name'] for item in table['columnDefinitions']] == [
        'Name', 'Ready', 'Up-to-date', 'Available', 'Age', 'Containers', 'Images', 'Selector']
    cells = table['rows'][0]['cells']
    assert cells[:4] == ['one', '0/3', 0, 0]
    assert cells[5:] == ['c', 'i', 'a=b']


@pytest.mark.parametrize(('metrics', 'targets'), [
    ([], 'cpu: <unknown>/80%'),
    ([{'type': 'Resource', 'resource': {
        'name': 'memory', 'target': {'type': 'AverageValue', 'averageValue': '5Mi'}}},
      {'type': 'Object', 'object': {
          'describedObject': {'kind': 'Pod', 'name': 'x', 'apiVersion': 'v1'},
          'metric': {'name': 'x'}, 'target': {'type': 'AverageValue', 'averageValue': '3'}}},
      {'type': 'Pods', 'pods': {
          'metric': {'name': 'x'}, 'target': {'type': 'AverageValue', 'averageValue': '3'}}}],
     'memory: <unknown>/5Mi, <unknown>/3 (avg) + 1 more...'),
    ([{'type': 'External', 'external': {
        'metric': {'name': 'x'}, 'target': {'type': 'Value', 'value': '3'}}}],
     '<unknown>/3'),
])
def test_autoscalers_tell_their_targets(api, ns, metrics, targets):
    path = f'/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers'
    api.post(path, make('one', kind='HorizontalPodAutoscaler', version='autoscaling/v2', spec={
        'scaleTargetRef': {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'name': 'x'},
        'maxReplicas': 3, **({'metrics': metrics} if metrics else {})})).ok
    [row] = api.get(path, accept=TABLE).ok['rows']
    assert row['cells'][:6] == ['one', 'Deployment/x', targets, '1', 3, 0]


def test_namespaces_tell_their_phase(api, ns):
    table = api.get(f'/api/v1/namespaces/{ns}', accept=TABLE).ok
    assert table['rows'][0]['cells'][:2] == [ns, 'Active']


def test_tables_have_pages_too(api, cms):
    for name in 'abc':
        api.post(cms, make(name)).ok
    table = api.get(cms, accept=TABLE, limit='2').ok
    assert len(table['rows']) == 2
    assert table['metadata']['continue']
    assert table['metadata']['remainingItemCount'] == 1


@pytest.mark.parametrize('version', ['v1', 'v1beta1'])
def test_bookmarks_of_tables_are_in_the_version_of_the_tables(api, cms, version):
    with api.watch(cms, accept=f'application/json;as=Table;v={version};g=meta.k8s.io',
                   sendInitialEvents='true', allowWatchBookmarks='true',
                   resourceVersionMatch='NotOlderThan') as watch:
        bookmark = next(watch)
    assert bookmark['type'] == 'BOOKMARK'
    assert bookmark['object']['apiVersion'] == f'meta.k8s.io/{version}'
