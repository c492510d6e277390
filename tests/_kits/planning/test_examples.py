"""All examples can be planned."""
import contextlib
import pathlib

import pytest

from kopf import testing
from kopf._kits.planning import rendering

EXAMPLES = pathlib.Path(__file__).parents[3] / 'examples'
ALONE = EXAMPLES / '16-several-operators' / 'example.py'
PATHS = sorted(path for path in EXAMPLES.glob('*/*.py')
               if not path.name.startswith(('test_', 'fake')))

UNUSUAL = {
    '03-errors': "failed with an exception and will stop",
    '17-testing': "Nobody is at home.",
}
"""The examples whose handlers fail with the object of all examples, and how."""

CALLED = {
    '18-walkthrough': ['dns: create'],
    '25-external': ['billing: create'],
    '26-database': ['role: create'],
    '27-tenant': ['billing: create'],
    '28-dns': ['record: create'],
}
"""The examples with external systems, and what they would call."""


@pytest.fixture()
def origin():
    with testing.run_sandbox() as sandbox:
        sandbox.client.load(EXAMPLES / 'crd.yaml', EXAMPLES / 'obj.yaml')
        yield sandbox


@pytest.mark.parametrize(
    'path', [path for path in PATHS if path != ALONE],
    ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_examples_can_be_planned(origin, path):
    for file in sorted(path.parent.glob('*.yaml'), key=lambda file: file.name != 'crd.yaml'):
        with contextlib.suppress(testing.APIError, LookupError):  # some are to be edited first
            origin.client.load(file)
    made = testing.plan(path, origin=origin.credentials, clusterwide=True)
    assert not made.problems and not made.refused
    expected = UNUSUAL.get(path.parent.name)
    assert [expected in failure.message for failure in made.failures] == (
        [] if expected is None else [True])
    assert [f'{call.external}: {call.verb}' for call in made.calls] == CALLED.get(
        path.parent.name, [])
    assert rendering.render(made, 'text')


def test_operators_with_their_own_registries_have_no_handlers_here(origin):
    with pytest.raises(testing.PlanError, match="There are no handlers"):
        testing.plan(ALONE, origin=origin.credentials, clusterwide=True)
