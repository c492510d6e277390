import pytest

from kopf._cogs.structs.references import Selector


@pytest.mark.parametrize('args, right', [
    (('v1', 'kopf.dev', 'kopfexamples'), "'kopf.dev', 'v1', 'kopfexamples'"),
    (('kopfexamples', 'kopf.dev', 'v1'), "'kopf.dev', 'v1', 'kopfexamples'"),
    (('kopf.dev', 'kopfexamples', 'v1'), "'kopf.dev', 'v1', 'kopfexamples'"),
    (('kopfexamples', 'kopf.dev'), "'kopf.dev', 'kopfexamples'"),
    (('kopfexamples', 'kopf.dev/v1'), "'kopf.dev/v1', 'kopfexamples'"),
    (('v1', 'apps', 'deployments'), "'apps', 'v1', 'deployments'"),
    (('pods', 'v1'), "'v1', 'pods'"),
])
def test_the_right_order_is_proposed_for_a_wrong_one(args, right):
    with pytest.raises(TypeError) as e:
        Selector(*args)
    assert str(e.value).endswith(f"did you mean {right}?")


@pytest.mark.parametrize('args', [
    ('kopf.dev', 'v1', 'kopfexamples'), ('kopf.dev/v1', 'kopfexamples'), ('v1', 'pods'),
    ('apps', 'v1', 'deployments'), ('', 'v1', 'pods'), ('apps', 'deployments'), ('pods',),
    ('kopfexamples.v1.kopf.dev',), ('kopf.dev', 'kopfexamples')])
def test_right_orders_are_accepted(args):
    assert Selector(*args)


def test_a_version_of_an_api_is_no_resource():
    with pytest.raises(TypeError, match="Name the resource after it"):
        Selector('kopf.dev/v1')


async def _async(body):
    pass


@pytest.mark.parametrize('fn', [lambda **_: None, lambda spec, **_: None, _async])
def test_handlers_are_no_selectors(fn):
    with pytest.raises(TypeError, match="is given instead of a resource"):
        Selector(fn)


@pytest.mark.parametrize('fn', [
    lambda r: True, lambda resource: True, lambda resource, **_: True, lambda *_: True,
    vars])  # it has no signature
def test_functions_of_resources_are_selectors(fn):
    assert Selector(fn).fn is fn


@pytest.mark.parametrize('fn', [
    lambda r: True, lambda resource: True, lambda r, **_: True, lambda r, *_, **__: True,
    lambda r, other=None: True])
def test_functions_of_resources_select(fn):
    assert Selector(fn).fn is fn
