"""
What people expect, but is not so: each idea is found by the words that they type into the search of
the documentation, and what is said there is what happens.
"""
import asyncio
import pathlib
import re

import pytest

from kopf import testing
from kopf.testing import virtual_time

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / 'docs' / 'troubleshooting.md').read_text(encoding='utf-8')
_, _, PART = PAGE.partition('\n## What people expect')
ROWS = [line for line in PART.partition('\n## ')[0].splitlines() if line.startswith('| ')][2:]
CRD = ROOT / 'examples' / 'crd.yaml'

QUERIES = [
    "update handler status change",
    "modify spec in place",
    "mutate object",
    "handler called when pod changed",
    "deleted child created again",
    "owner reference child deleted with parent",
    "renamed handler",
    "rename group of resource",
    "terminating finalizer kubectl delete hangs",
    "operator uninstalled delete",
    "two operators at once",
    "replicas share work twice",
    "update handler endless loop",
    "handler triggering itself",
    "event handler patch loop",
    "creation handler existing objects restart",
    "exception stop retried forever",
    "time.sleep blocking async",
    "requests.get async handler",
    "global variables restart",
    "result not in status schema",
    "order of handlers",
    "change missed",
    "old none creation",
    "daemon returned again",
    "timer permanent error",
    "retry duplicates",
    "kubectl apply revert spec",
    "forbidden 403 in cluster",
    "validating handler return false refuse",
    "pip install kopf",
]


def test_there_are_at_least_twenty():
    assert len(ROWS) >= 20


@pytest.mark.parametrize('query', QUERIES)
def test_each_idea_is_found_by_the_words_that_are_typed(query):
    """The search of the site finds words by their stems; here, all of them are in one row."""
    stems = [re.sub(r'(?<=\w{4})(?:ies|es|ed|e|s|ing|y)$', '', word)
             for word in query.lower().split()]
    assert [row for row in ROWS if all(re.search(rf'\b{re.escape(stem)}', row.lower())
                                       for stem in stems)]


async def run(path, text, *, seconds=300, change=None, **fields):
    """What an operator with these handlers logs, and what becomes of an object."""
    path.write_text(f'import kopf\n\n{text}\n')
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        async with api.operator(path) as operator:
            await api.client.create('kopfexamples', 'obj', **fields or {'spec': {'field': 1}})
            await asyncio.sleep(seconds)
            if change is not None:
                await api.client.patch('kopfexamples', 'obj', change)
                await asyncio.sleep(seconds)
            return operator.text, await api.client.get('kopfexamples', 'obj')


@virtual_time
async def test_changes_of_the_status_are_no_updates(tmp_path):
    text, obj = await run(
        tmp_path / 'handlers.py', change={'status': {'field': 2}}, text="""
@kopf.on.update('kopfexamples')
def fn(**_): ...
""")
    assert obj['status']['field'] == 2 and "'fn'" not in text


@virtual_time
async def test_changes_of_the_status_are_updates_if_any_handler_selects_it(tmp_path):
    text, _ = await run(
        tmp_path / 'handlers.py', change={'status': {'field': 2}}, text="""
@kopf.on.update('kopfexamples')
def plain(**_): ...
@kopf.on.update('kopfexamples', field='status')
def by_field(**_): ...
@kopf.on.update('kopfexamples', field='spec')
def by_spec(**_): ...
""")
    assert "'by_field/status' succeeded" in text and "'plain' succeeded" in text
    assert "'by_spec/spec'" not in text


@virtual_time
async def test_old_is_none_and_the_diff_has_one_item_on_creation(tmp_path):
    text, _ = await run(tmp_path / 'handlers.py', """
@kopf.on.create('kopfexamples')
def fn(old, diff, logger, **_): logger.info(f"old={old} {len(diff)} {diff[0][:3]}")
""")
    assert "old=None 1 ('add', (), None)" in text


@virtual_time
async def test_timers_stop_after_permanent_errors_and_continue_after_others(tmp_path):
    text, _ = await run(tmp_path / 'handlers.py', """
@kopf.timer('kopfexamples', interval=100)
def stops(**_): raise kopf.PermanentError("No.")
@kopf.timer('kopfexamples', interval=100)
def continues(**_): raise Exception("No.")
""")
    assert text.count("'stops' failed permanently: No.") == 1
    assert text.count("'continues' failed with an exception and will try again") > 1


@virtual_time
async def test_daemons_that_have_returned_do_not_start_again(tmp_path):
    text, _ = await run(
        tmp_path / 'handlers.py', change={'spec': {'field': 2}}, text="""
@kopf.daemon('kopfexamples')
async def fn(logger, **_): logger.info("It runs.")
""")
    assert text.count("It runs.") == 1


@virtual_time
async def test_handlers_that_update_their_own_object_are_slowed_down(tmp_path):
    text, obj = await run(
        tmp_path / 'handlers.py', change={'spec': {'field': 2}}, text="""
@kopf.on.update('kopfexamples')
def fn(spec, patch, **_): patch.spec['count'] = spec.get('count', 0) + 1
""")
    assert "10 times in a row, the handlers were called only because 'fn' had changed" in text
    assert obj['spec']['count'] < 30


@virtual_time
async def test_event_handlers_see_their_own_patches(tmp_path):
    _, obj = await run(tmp_path / 'handlers.py', """
@kopf.on.event('kopfexamples')
def fn(status, patch, **_): patch.status['count'] = min(status.get('count', 0) + 1, 5)
""")
    assert obj['status']['count'] == 5


@virtual_time
async def test_exceptions_are_retried_each_minute(tmp_path):
    text, _ = await run(tmp_path / 'handlers.py', """
@kopf.on.create('kopfexamples')
def fn(**_): raise Exception("No.")
""")
    assert text.count("'fn' failed with an exception and will try again in 60 seconds: No.") == 5
