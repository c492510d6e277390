"""
Whether definitions can be applied to the API as they are declared.
"""
import pytest

from kopf._kits.typed.publishing import CLUSTER, Options, publish
from tests._kits.typed.pairs import INTEGER, STRING, define, holding, rules
from tests.e2e.kubes import CRDS, Kind


@pytest.fixture()
async def kind(kube):
    kind = Kind.make_unique()
    yield kind
    await kube.delete_kind(kind)


def define_kind(kind, **limits):
    schema = {**INTEGER, 'description': 'x' * 300_000, **limits, **rules('self < 9')}
    definition = define(
        holding(x=schema, y=STRING), group=kind.group,
        names={'plural': kind.plural, 'kind': kind.kind},
        version={'selectableFields': [{'jsonPath': '.spec.y'}]})
    return {**definition, 'metadata': {'name': f'{kind.plural}.{kind.group}'}}


async def test_definitions_are_applied_without_what_the_api_does_not_know(
        kube, kind, minor, cluster, registry, monkeypatch):
    """The description is larger than annotations, in which `kubectl apply` would put it."""
    monkeypatch.setenv('KUBECONFIG', cluster)
    definition = define_kind(kind, maximum=5)
    name = definition['metadata']['name']
    report = await publish([definition], Options(apply=True), registry=registry)
    ignored = [line.rpartition('[')[2] for line in report.lines[:-1]]
    assert ignored == (['not-enforced]'] * 2 if minor < 25 else [])
    assert (report.lines[-1], report.code) == (f"Applied {name}.", 0)

    await kube.wait_served(kind)
    found = await kube.request('GET', f'{CRDS}/{name}')
    assert ('Apply', 'kopf') in {
        (item['operation'], item['manager']) for item in found['metadata']['managedFields']}
    report = await publish([definition], Options(against=CLUSTER), registry=registry)
    assert (report.lines, report.code) == ([], 0)

    report = await publish(
        [define_kind(kind, maximum=3)], Options(against=CLUSTER, apply=True), registry=registry)
    assert 'maximum was 5, and is 3.' in report.lines[0]
    assert report.code == 4
