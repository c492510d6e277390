import pathlib

import yaml

from tests.e2e.kubes import CRDS, KubeError

MANIFEST = pathlib.Path(__file__).parents[2] / 'peering.yaml'


async def test_the_kinds_for_peering_are_accepted_by_the_api(kube):
    definitions = list(yaml.safe_load_all(MANIFEST.read_text()))
    assert {definition['metadata']['name'] for definition in definitions} == {
        'clusterkopfpeerings.kopf.dev', 'kopfpeerings.kopf.dev',
        'clusterkopfpeerings.zalando.org', 'kopfpeerings.zalando.org',
    }
    for definition in definitions:
        try:
            await kube.request('POST', CRDS, body=definition, params={'dryRun': 'All'})
        except KubeError as e:
            assert e.status == 409  # they are there for real
