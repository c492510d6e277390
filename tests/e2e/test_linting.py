"""
Whether the API confirms what is said about the schemas that it refuses, or that lose fields.
"""
import dataclasses

import pytest

from kopf._kits.typed.linting import lint
from tests._kits.typed.pairs import STRING, define, holding, listing, mapping, rules
from tests.e2e.kubes import CRDS, Kind, KubeError

ITEM = holding(a=STRING, b=listing(STRING))

COSTLY = [
    {**listing(STRING), **rules('self.all(x, self.exists_one(y, x == y))')},
    {**listing(ITEM), **rules('self.all(x, x.b.all(y, y.startsWith(x.a)))')},
    {**holding(c=listing(STRING), d=listing(STRING)), **rules('self.c.all(x, x in self.d)')},
    listing({**ITEM, **rules('self.b.all(x, x.matches(self.a))')}),
    mapping({**listing(STRING), **rules('self.all(x, self.exists_one(y, x == y))')}),
    listing(listing({**STRING, **rules('self.matches("^[a-z]+$")')})),
]
"""Schemas with rules that cost too much, as values can be of any size."""

BOUNDS = {'array': 'maxItems', 'object': 'maxProperties', 'string': 'maxLength'}


def set_bounds(schema, paths, path):
    """Get the schema with bounds for the values at the paths."""
    bound = {BOUNDS[schema['type']]: 5} if path in paths else {}
    fields = {key: set_bounds(sub, paths, f'{path}.{key}')
              for key, sub in schema.get('properties', {}).items()}
    inner = {key: set_bounds(schema[key], paths, f'{path}[*]')
             for key in ('items', 'additionalProperties') if key in schema}
    return {**schema, **({'properties': fields} if fields else {}), **inner, **bound}


@pytest.mark.parametrize('schema', COSTLY, ids=range(len(COSTLY)))
async def test_the_api_accepts_rules_with_the_bounds_that_are_missing(
        kube, make_kind, minor, is_sandbox, schema):
    if minor < 25 or is_sandbox:
        pytest.skip("This API does not estimate the costs of rules in CEL.")
    kind = await make_kind()
    path = f'{CRDS}/{kind.plural}.{kind.group}'
    definition = await kube.request('GET', path)

    async def is_accepted(spec):
        [version] = definition['spec']['versions']
        version['schema'] = {'openAPIV3Schema': holding(spec=spec)}
        try:
            await kube.set_spec(path, definition['spec'], dry=True)
        except KubeError as e:
            assert 'estimated rule cost' in str(e), e
            return False
        return True

    found = {finding.path.partition('/v1')[2] for finding in lint(define(holding(x=schema)))
             if finding.rule == 'rule-without-bounds'}
    assert not await is_accepted(holding(x=schema))
    assert await is_accepted(set_bounds(holding(x=schema), found, '.spec'))


async def test_the_api_loses_the_fields_in_which_versions_differ(kube):
    old_api = Kind.make_unique()
    new_api = dataclasses.replace(old_api, version='v2')
    definition = define(group=old_api.group, names={'plural': old_api.plural, 'kind': old_api.kind})
    definition['metadata'] = {'name': f'{old_api.plural}.{old_api.group}'}
    [version] = definition['spec']['versions']
    definition['spec']['versions'] = [
        {**version, 'schema': {'openAPIV3Schema': holding(spec=holding(x=STRING, y=STRING))}},
        {**version, 'schema': {'openAPIV3Schema': holding(spec=holding(y=STRING))},
         'name': 'v2', 'storage': False}]
    assert [finding.path for finding in lint(definition) if finding.rule == 'versions-differ'] == [
        f'{old_api.plural}.{old_api.group}/v1.spec.x']

    await kube.request('POST', CRDS, body=definition)
    try:
        await kube.wait_served(old_api)
        await kube.wait_served(new_api)
        await kube.create(old_api, 'some', spec={'x': 'a', 'y': 'b'})
        await kube.replace(new_api, await kube.get(new_api, 'some'))
        assert (await kube.get(old_api, 'some'))['spec'] == {'y': 'b'}
    finally:
        await kube.delete_kind(old_api)
