import pathlib

import pytest
import yaml

import kopf
from kopf import testing
from kopf._cogs.clients.vaults import Vault
from kopf._kits import commanding
from kopf._kits.typed.publishing import CLUSTER, Options, check, dump, publish, read
from tests._kits.typed.pairs import INTEGER, STRING, X, define, holding, rules

LONG = {**STRING, 'maxLength': 9, 'description': 'A string.'}
SHORT = {**LONG, 'maxLength': 5}
ERROR = f"error: {X}: maxLength was 9, and is 5. [bounds-tightened]"
HINT = ("Make incompatible changes in a new version. To accept one nevertheless: "
        f"--allow='bounds-tightened:{X}'")


def define_x(schema, **options):
    return define({**holding(x=schema), 'description': 'The spec.'}, **options)


@pytest.fixture()
def write(tmp_path):
    """Write objects to a file; returns its path."""
    def write(*objects, name='crd.yaml'):
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(objects))
        return str(path)
    return write


def test_fields_that_yaml_can_take_for_booleans_are_quoted_and_stay(tmp_path):
    definition = define(holding(y=INTEGER, n={**STRING, 'default': '1e3'}))
    path = tmp_path / 'crd.yaml'
    path.write_text(dump([definition]))
    assert "\n              'y':\n" in path.read_text()
    assert "default: '1e3'" in path.read_text()
    assert read(path) == [definition]


def test_fields_that_kubectl_takes_for_booleans_are_drift(write):
    definition = define(holding(y=INTEGER))
    assert check([definition], Options(drift=pathlib.Path(write(definition)))).code == 3


def test_without_options_nothing_is_reported():
    report = check([define_x(SHORT)], Options())
    assert (report.lines, report.code) == ([], 0)


def test_incompatible_changes_are_errors(write):
    report = check([define_x(SHORT)], Options(against=write(define_x(LONG))))
    assert (report.lines, report.code) == ([ERROR, HINT], 4)


def test_compatible_changes_are_no_errors(write):
    report = check([define_x(LONG)], Options(against=write(define_x(SHORT))))
    assert (report.lines, report.code) == ([], 0)


def test_warnings_are_no_errors(write):
    report = check([define_x({**LONG, 'default': 'a'})], Options(against=write(define_x(LONG))))
    assert report.lines == [f'warning: {X}: The default was none, and is "a". [default-changed]']
    assert report.code == 0


def test_allowed_changes_are_no_errors(write):
    report = check([define_x(SHORT)], Options(
        against=write(define_x(LONG)), allow=[f'bounds-tightened:{X}']))
    assert (report.lines, report.code) == ([f"allowed: {ERROR}"], 0)


def test_only_the_named_path_is_allowed(write):
    report = check([define_x(SHORT)], Options(
        against=write(define_x(LONG)), allow=[f'bounds-tightened:{X}y']))
    assert report.lines == [
        ERROR,
        f"note: --allow=bounds-tightened:{X}y is not needed: there is no such finding.", HINT]
    assert report.code == 4


def test_unknown_rules_cannot_be_allowed():
    with pytest.raises(commanding.CommandError, match="no such rule as in --allow=some:thing"):
        check([define_x(SHORT)], Options(allow=['some:thing']))


def test_several_findings_at_a_place_are_all_reported(write):
    report = check([define_x({**SHORT, 'minLength': 2})], Options(against=write(define_x(LONG))))
    assert len(report.lines) == 3


def test_new_definitions_are_compatible(write):
    other = {**define_x(LONG), 'metadata': {'name': 'others.example.com'}}
    report = check([define_x(LONG), other], Options(against=write(define_x(LONG))))
    assert (report.lines, report.code) == ([], 0)


def test_definitions_must_not_vanish(write):
    other = {**define_x(LONG), 'metadata': {'name': 'others.example.com'}}
    report = check([define_x(LONG)], Options(against=write(define_x(LONG), other)))
    assert report.lines[0] == ("error: others.example.com: The kind is not declared any more. "
                               "[definition-removed]")
    assert report.code == 4


@pytest.mark.parametrize(('kubernetes', 'code'), [(24, 0), (25, 4), (29, 4), (30, 0), (36, 0)])
def test_the_version_of_kubernetes_decides_on_new_rules(write, kubernetes, code):
    old, new = define_x(INTEGER), define_x({**INTEGER, **rules('self < 5')})
    report = check([new], Options(against=write(old), kubernetes=kubernetes))
    assert report.code == code


def test_selectable_fields_that_are_ignored_are_not_compared(write):
    old = define_x(LONG, version={'selectableFields': [{'jsonPath': '.spec.x'}]})
    assert check([define_x(LONG)], Options(against=write(old), kubernetes=30)).code == 0
    assert check([define_x(LONG)], Options(against=write(old), kubernetes=31)).code == 4


def test_what_is_not_enforced_is_a_warning():
    report = check([define_x({**INTEGER, 'format': 'int32'})], Options(kubernetes=20))
    assert report.lines == [f"warning: {X}: Kubernetes 1.20 ignores the format 'int32', until 1.36."
                            " [not-enforced]"]
    assert report.code == 0


def test_bad_habits_have_their_own_code():
    report = check([define_x({**STRING, 'description': ''})], Options(lint=True))
    assert report.lines == [
        f"warning: {X}: The field has no description. [description-missing]"]
    assert report.code == 1


def test_bad_habits_can_be_allowed():
    report = check([define_x(STRING)], Options(lint=True, allow=[f'description-missing:{X}']))
    assert report.code == 0


def test_a_file_that_is_as_declared_has_no_drift(write):
    written = {**define_x(LONG), 'status': {'conditions': []}}
    written['metadata'] = {'creationTimestamp': None, **written['metadata']}
    report = check([define_x(LONG)], Options(drift=pathlib.Path(write(written))))
    assert (report.lines, report.code) == ([], 0)


def test_a_drift_is_shown(write):
    path = write(define_x(LONG))
    report = check([define_x(SHORT)], Options(drift=pathlib.Path(path)))
    assert report.lines[:2] == [
        f'--- {path}: things.example.com', '+++ declared: things.example.com']
    assert [(line[0], line[1:].strip()) for line in report.lines[2:] if line[0] in '+-'] == [
        ('-', 'maxLength: 9'), ('+', 'maxLength: 5')]
    assert report.code == 3


def test_a_definition_that_is_not_written_is_a_drift(write):
    other = {**define_x(LONG), 'metadata': {'name': 'others.example.com'}}
    report = check([define_x(LONG), other], Options(drift=pathlib.Path(write(define_x(LONG)))))
    assert '+  name: others.example.com' in report.lines
    assert report.code == 3


def test_a_definition_that_is_not_declared_is_a_drift(write):
    other = {**define_x(LONG), 'metadata': {'name': 'others.example.com'}}
    report = check([define_x(LONG)], Options(drift=pathlib.Path(write(define_x(LONG), other))))
    assert '-  name: others.example.com' in report.lines
    assert report.code == 3


def test_of_several_codes_the_greatest_counts(write):
    old = write(define_x(LONG))
    options = {'drift': pathlib.Path(old), 'lint': True}
    definition = define_x({**SHORT, 'description': ''})
    assert check([definition], Options(**options)).code == 3
    assert check([definition], Options(**options, against=old)).code == 4


def test_definitions_are_read_among_other_objects(write):
    path = write(
        {'kind': 'Secret'}, None, define_x(LONG), {'kind': 'List', 'items': [define_x(SHORT)]})
    assert read(pathlib.Path(path)) == [define_x(LONG), define_x(SHORT)]


def test_definitions_are_read_from_a_folder(write, tmp_path):
    write(define_x(LONG), name='b.yaml')
    write(define_x(SHORT), name='a.yml')
    (tmp_path / 'README').write_text('{')
    assert read(tmp_path) == [define_x(SHORT), define_x(LONG)]


@pytest.mark.parametrize(('text', 'error'), [
    ('', "has no CustomResourceDefinition in it"),
    ('kind: Secret', "has no CustomResourceDefinition in it"),
    ('{', "cannot be read as YAML: "),
    ('{{ if .Values.crds }}', "cannot be read as YAML: "),
    ('{kind: CustomResourceDefinition, apiVersion: apiextensions.k8s.io/v1beta1}',
     "incomplete, or not of apiextensions.k8s.io/v1"),
    (yaml.safe_dump(define(version={'schema': {}})), "incomplete, or not of"),
    (yaml.safe_dump(define(version={'schema': None})), "incomplete, or not of"),
    (yaml.safe_dump(define(version={'schema': {'openAPIV3Schema': None}})), "incomplete, or not"),
    (yaml.safe_dump(define(versions=[None])), "incomplete, or not of"),
    (yaml.safe_dump(define(versions=[{'schema': {'openAPIV3Schema': {}}}])),
     "incomplete, or not of"),
])
def test_files_without_definitions_are_errors(tmp_path, text, error):
    path = tmp_path / 'crd.yaml'
    path.write_text(text)
    with pytest.raises(commanding.CommandError, match=error) as found:
        read(path)
    assert str(path) in str(found.value)


def test_an_absent_file_is_an_error(tmp_path):
    with pytest.raises(commanding.CommandError, match="cannot be read as YAML: .*No such file"):
        read(tmp_path / 'absent.yaml')


async def publish_to(api, *definitions, **options):
    return await publish(
        definitions, Options(**options), vault=Vault({'test': api.credentials}))


@testing.virtual_time
async def test_definitions_are_compared_with_those_of_the_cluster():
    async with testing.open_api('sandbox') as api:
        assert (await publish_to(api, define_x(SHORT), against=CLUSTER)).code == 0
        await api.client.create(define_x(LONG))
        report = await publish_to(api, define_x(SHORT), against=CLUSTER)
        assert (report.lines, report.code) == ([ERROR, HINT], 4)


async def test_the_cluster_is_not_asked_without_need(write):
    options = Options(against=write(define_x(LONG)))
    report = await publish([define_x(SHORT)], options, vault=Vault({}))
    assert report == check([define_x(SHORT)], options)


@testing.virtual_time
async def test_the_version_of_the_cluster_decides_on_new_rules():
    old, new = define_x(INTEGER), define_x({**INTEGER, **rules('self < 5')})
    async with testing.open_api('sandbox') as api:
        await api.client.create(old)
        assert (await publish_to(api, new, against=CLUSTER)).code == 0
        assert (await publish_to(api, new, against=CLUSTER, kubernetes=25)).code == 4


async def get_managers(api):
    found = await api.client.get('CustomResourceDefinition', 'things.example.com')
    return {item['manager']: item['operation'] for item in found['metadata']['managedFields']}


@testing.virtual_time
async def test_definitions_are_applied_by_the_server():
    async with testing.open_api('sandbox') as api:
        report = await publish_to(api, define_x(LONG), apply=True)
        assert (report.lines, report.code) == (["Applied things.example.com."], 0)
        report = await publish_to(api, define_x(STRING), apply=True)
        found = await api.client.get('CustomResourceDefinition', 'things.example.com')
        schema = found['spec']['versions'][0]['schema']['openAPIV3Schema']
        assert schema['properties']['spec']['properties']['x'] == STRING
        assert (await get_managers(api))['kopf'] == 'Apply'


@testing.virtual_time
async def test_nothing_is_applied_if_something_is_wrong():
    async with testing.open_api('sandbox') as api:
        await publish_to(api, define_x(LONG), apply=True)
        report = await publish_to(api, define_x(SHORT), apply=True, against=CLUSTER)
        assert (report.lines, report.code) == ([ERROR, HINT], 4)
        assert (await publish_to(api, define_x(LONG), against=CLUSTER)).lines == []


@testing.virtual_time
async def test_the_fields_of_others_are_not_taken_over():
    async with testing.open_api('sandbox') as api:
        await api.client.create(define_x(LONG))
        with pytest.raises(commanding.CommandError, match="kubectl apply --server-side --force-"):
            await publish_to(api, define_x(SHORT), apply=True)


def define_versions(stored):
    definition = define_x(LONG)
    [version] = definition['spec']['versions']
    old = {**version, 'name': 'v1alpha1', 'storage': stored == 'v1alpha1'}
    old['schema'] = define_x(INTEGER)['spec']['versions'][0]['schema']
    versions = [{**version, 'storage': stored == 'v1'}, old]
    return {**definition, 'spec': {**definition['spec'], 'versions': versions}}


@testing.virtual_time
async def test_another_version_is_stored_only_if_objects_are_converted():
    async with testing.open_api('sandbox') as api:
        await publish_to(api, define_versions('v1alpha1'), apply=True)
        with pytest.raises(commanding.CommandError, match=r"as v1 before .* are converted"):
            await publish_to(api, define_versions('v1'), apply=True)
        await api.client.patch('crds', 'things.example.com', {'spec': {'conversion': {
            'strategy': 'Webhook', 'webhook': {
                'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://127.0.0.1/'}}}}})
        assert (await publish_to(api, define_versions('v1'), apply=True)).code == 0


@testing.virtual_time
async def test_the_conversion_by_the_operator_is_not_removed():
    registry, options = kopf.OperatorRegistry(), Options(against=CLUSTER)
    kopf.on.convert('things.example.com', 'v1alpha1', 'v1', registry=registry)(lambda obj: None)
    conversion = {'strategy': 'Webhook', 'webhook': {
        'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://127.0.0.1/'}}}
    definition = define_versions('v1')
    async with testing.open_api('sandbox') as api:
        await api.client.create({
            **definition, 'spec': {**definition['spec'], 'conversion': conversion}})
        vault = Vault({'test': api.credentials})
        report = await publish([definition], options, registry=registry, vault=vault)
        assert (report.lines, report.code) == ([], 0)
        report = await publish([definition], options, vault=vault)
        assert 'conversion-removed' in report.lines[0]
    options = Options(lint=True)
    assert 'versions-differ' in str((await publish([definition], options)).lines)
    report = await publish([definition], options, registry=registry)
    assert 'versions-differ' not in str(report.lines)


@testing.virtual_time
async def test_refused_definitions_are_errors():
    async with testing.open_api('sandbox') as api:
        with pytest.raises(commanding.CommandError, match="cannot be read or applied: .*scope"):
            await publish_to(api, define_x(LONG, scope='Universal'), apply=True)
