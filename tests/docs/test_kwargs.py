"""The tables of arguments tell exactly what handlers get."""
import re

import pytest

import kopf
from kopf import testing
from tests.docs.snippets import DOCS

PAGE = (DOCS / 'kwargs.md').read_text()
EXAMPLES = DOCS.parent / 'examples'
OBJECTS = 'all handlers of objects'

KINDS = {
    'startup, cleanup, login, probe': (kopf.on.startup, 'startup'),
    'create, update, delete, resume, field, sub-handlers': (kopf.on.create, 'create'),
    'event': (kopf.on.event, 'event'),
    'daemons, timers': (kopf.daemon, 'daemon'),
    'index': (kopf.index, 'index'),
    'validate, mutate': (kopf.on.validate, 'validate'),
}


def read_table(first):
    _, _, rest = PAGE.partition(f'| {first} |')
    rows = re.findall(r'^\| (.*?) \| (.*?) \|$', rest.partition('\n\n')[0], re.MULTILINE)
    return {name: set(re.findall(r'`(\w+)`', text)) for name, text in rows}


def get_told(kind):
    common = {name.strip('`') for name in re.findall(
        r'^\| (`\w+`) \|', PAGE.partition('In addition')[0], re.MULTILINE)}
    table = read_table('handlers | arguments')
    expected = common | table[kind]
    if 'object arguments' in PAGE.partition(f'| {kind} |')[2].partition('\n')[0]:
        expected |= table[OBJECTS]
    return expected


@pytest.mark.parametrize('kind', KINDS)
def test_handlers_get_what_is_told(kind):
    registry = kopf.OperatorRegistry()
    decorator, reason = KINDS[kind]
    seen = set()

    def fn(**kwargs):
        seen.update(kwargs)

    args = () if reason == 'startup' else ('kopfexamples',)
    decorator(*args, registry=registry)(fn)
    done = testing.invoke_sync(fn, {'spec': {}}, reason=reason, registry=registry)
    assert done.succeeded
    assert seen == get_told(kind)


@testing.virtual_time
async def test_reconciling_handlers_get_what_is_told():
    registry = kopf.OperatorRegistry()
    seen = set()

    @kopf.reconcile('kopfexamples', registry=registry)
    def fn(patch, **kwargs):
        seen.update(kwargs, ['patch'])
        patch.status['seen'] = True

    async with testing.open_api('sandbox') as api:
        await api.client.load(EXAMPLES / 'crd.yaml')
        async with api.operator(registry=registry):
            await api.client.load(EXAMPLES / 'obj.yaml')
            await api.client.wait(
                'kopfexamples', 'kopf-example-1', lambda obj: obj['status']['seen'])
    assert seen == get_told('reconcile')
