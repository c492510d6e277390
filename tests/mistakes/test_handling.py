"""
What is read, in the log, by those whose operator starts, but whose handlers are mistaken.
"""
import asyncio
import pathlib
import re
import warnings

import pytest

from kopf import testing
from kopf.testing import virtual_time

CRD = pathlib.Path(__file__).parents[2] / 'examples' / 'crd.yaml'

CREATE = "@kopf.on.create('kopfexamples')\n"
STARTUP = "@kopf.on.startup()\n"

HANDLERS = [
    # Results and patches.
    (CREATE + "def fn(**_): return object()",
     r"'fn' failed permanently: the result cannot be stored: Object of type object is not JSON"),
    (CREATE + "def fn(**_): return {1: {2, 3}}",
     r"'fn' failed permanently: .* type set is not JSON .* Return only what JSON can have"),
    (CREATE + "def fn(patch, **_): patch.status['when'] = datetime.datetime.now()",
     r"'fn' failed permanently: its patch is not JSON: Object of type datetime is not JSON"),
    (CREATE + "def fn(patch, body, **_): patch.status['copy'] = body",
     r"'fn' failed permanently: its patch is not JSON: Object of type OwnBody is not JSON"),
    (CREATE + "def fn(patch, **_): patch['metadata'] = None",
     r"'fn' failed permanently: its patch replaces the metadata with None"),
    ("@kopf.on.event('kopfexamples')\ndef fn(patch, **_): patch['metadata'] = None",
     r"The patch of event handlers is refused: it replaces the metadata with None"),
    (CREATE + "def fn(patch, **_): patch['spec'] = 'text'",
     r"'fn' failed permanently: its patch is refused by the API: .* must be of type object"),
    (CREATE + "def fn(patch, **_): patch.meta['name'] = 'other'",
     r"'fn' failed permanently: its patch is refused by the API: the name of the object"),
    (CREATE + "def fn(patch, **_): patch.spec = {'field': 1}",
     r"patch\.spec cannot be assigned\. Set its fields instead, .*: patch\.spec\['field'\]"),
    (CREATE + "def fn(patch, **_): patch.meta.labels = {'a': 'b'}",
     r"patch\.meta\.labels cannot be assigned\. Set its fields instead"),
    (CREATE + "def fn(spec, **_): spec['field'] = 1",
     r"does not support item assignment\. .* use the argument `patch`, .*: patch\.spec\['field'\]"),
    (CREATE + "def fn(body, **_): body['spec'] = {}",
     r"does not support item assignment\. .* use the argument `patch`, .*: patch\['spec'\]"),
    (CREATE + "def fn(labels, **_): labels['app'] = 'web'",
     r"does not support item assignment\. .* patch\.metadata\.labels\['app'\] = "),
    (CREATE + "def fn(spec, **_): spec.update(field=1)",
     r"no attribute 'update'\. To change the object, use the argument `patch`, .*patch\.spec\["),
    (CREATE + "def fn(body, **_): body['spec']['field'] = 'other'",
     r"The handlers have changed spec\.field in memory only: this is not written\. .* `patch`"),
    (CREATE + "def fn(spec, **_): spec.field",
     r"no attribute 'field'\. Fields are keys: \['field'\], or \.get\('field'\) if the"),

    # Errors.
    (CREATE + "def fn(**_): raise kopf.TemporaryError('wait', delay='5s')",
     r"delay= must be a number of seconds, not '5s'"),
    (CREATE + "def fn(**_): raise kopf.TemporaryError('wait', delay=float('nan'))",
     r"delay= must be a number of seconds, not nan"),
    ("@kopf.daemon('kopfexamples', initial_delay=lambda **_: float('nan'))\ndef fn(**_): ...",
     r"Daemon 'fn' failed permanently: initial_delay= must be a number of seconds, not nan"),
    (CREATE + "def fn(**_): 1 / 0",
     r"'fn' failed with an exception and will try again in 60 seconds: division by zero"),
    ("@kopf.on.create('kopfexamples', when=lambda spec, **_: spec['size'] > 1)\ndef fn(**_): ...",
     r"(?s)'fn' failed with an exception and will try again in 60 seconds: .*KeyError: 'size'"),
    (CREATE + "def fn(memo, **_): memo.count += 1",
     r"There is no 'count' in the memo\."),

    # Functions of Kopf.
    (CREATE + "def fn(**_): kopf.event({}, type='Normal', reason='x', message='y')",
     r"The event 'x' will not be found at its object, as the object has no kind or no name\. Pass"),
    (CREATE + "def fn(**_): kopf.info('obj', reason='x', message='y')",
     r"Expected an object or several of them to post an event, got 'obj'"),
    (CREATE + "def fn(body, **_): kopf.info(body, 'hello')",
     r"info\(\) takes 1 positional argument but 2 were given"),
    (CREATE + "def fn(**_): kopf.adopt('pod')",
     r"Neither an object that can be changed, nor an iterable of objects: <class 'str'>"),
    (STARTUP + "def fn(**_): kopf.adopt({})",
     r"No object is handled at the moment: name the owner\."),

    # Settings.
    (STARTUP + "def fn(settings, **_): settings.posting.level = 'LOUD'",
     r"settings\.posting\.level must be an integer, not 'LOUD'"),
    (STARTUP + "def fn(settings, **_): settings.posting.enabled = 'false'",
     r"settings\.posting\.enabled must be True or False, not 'false'"),
    (STARTUP + "def fn(settings, **_): settings.queueing.worker_limit = '5s'",
     r"settings\.queueing\.worker_limit must be an integer or None, not '5s'"),
    (STARTUP + "def fn(settings, **_): settings.networking.error_backoffs = '1,2,3'",
     r"settings\.networking\.error_backoffs must be a number or several numbers, not '1,2,3'"),
    (STARTUP + "def fn(settings, **_): settings.networking.error_backoffs = '1,2,3'.split(',')",
     r"settings\.networking\.error_backoffs must be a number or several numbers, not \['1', '2'"),
    (STARTUP + "def fn(settings, **_): settings.queueing.error_delays = [1, None]",
     r"settings\.queueing\.error_delays must be a number or several numbers, not \[1, None\]"),
    (STARTUP + "def fn(settings, **_): settings.watching.label_selectors['pods'] = {'app': 'web'}",
     r"Selectors must be strings .*, for example 'app=web', not \{'app': 'web'\}"),
    (STARTUP + "def fn(settings, **_): settings.reconciling.error_delay = float('nan')",
     r"settings\.reconciling\.error_delay must be a number, not nan"),
    (STARTUP + "def fn(settings, **_): settings.peering.namespaced = 'false'",
     r"settings\.peering\.namespaced must be True or False, not 'false'"),
    (STARTUP + "def fn(settings, **_): settings.execution.max_workers = 'many'",
     r"settings\.execution\.max_workers must be an integer or None, not 'many'"),
    (STARTUP + "def fn(settings, **_): settings.execution.max_workers = 0",
     r"The number of workers must be at least 1"),
    (STARTUP + "def fn(settings, **_): settings.persistence.progress_storage = 'status'",
     r"settings\.persistence\.progress_storage must be an object of ProgressStorage, not 'status'"),
    (STARTUP + "def fn(settings, **_): settings.watching.label_selectors = {'pods': 'a=b'}",
     r"settings\.watching\.label_selectors must be an object of SelectorMapping, not \{'pods'"),
    (STARTUP + "def fn(settings, **_): settings.posting = False",
     r"settings\.posting must be an object of PostingSettings, not False"),
    (STARTUP + "def fn(settings, **_): settings.postings.enabled = False",
     r"There is no settings\.postings; did you mean settings\.posting\?"),
    (STARTUP + "def fn(settings, **_): settings.admission.server = kopf.WebhookServer",
     r"settings\.admission\.server must be .*, not a class, or None, not <class .*WebhookServer'>"),

    # Resources.
    ("@kopf.on.create('kopfexampels')\ndef fn(**_): ...",
     r"Unresolved resources .*: kopfexampels \(did you mean kopfexamples\.v1\.kopf\.dev\?\)"),
    ("@kopf.on.create('kopf.io', 'v1', 'kopfexamples')\ndef fn(**_): ...",
     r"Unresolved resources .* \(try creating their CRDs\): kopfexamples\.v1\.kopf\.io$"),
    ("@kopf.on.create(category='unknown')\ndef fn(**_): ...",
     r"Unresolved resources cannot be served \(try creating their CRDs\): category=unknown"),
]

STARTS = [
    (STARTUP + "def fn(settings, **_): settings.queueing.worker_limit = 0\n" + CREATE
     + "def created(**_): ...",
     r"settings\.queueing\.worker_limit must be at least 1, or None for no limit, not 0: no obj"),
    (STARTUP + "def fn(settings, **_):\n    settings.sharding.count = 2\n"
     "    settings.queueing.worker_limit = -1\n" + CREATE + "def created(**_): ...",
     r"settings\.queueing\.worker_limit must be at least 1, or None for no limit, not -1: no obj"),
    ("@kopf.on.validate('kopfexamples')\ndef fn(**_): ...",
     r"Admission handlers need a server or a tunnel, but none is configured: set settings\.admis"),
    (STARTUP + "def fn(settings, **_): settings.admission.server = kopf.WebhookServer("
     "certfile='absent.pem')\n@kopf.on.validate('kopfexamples')\ndef validate(**_): ...",
     r"The webhook server has failed: .* No such file or directory: 'absent\.pem'"),
]


def write(folder, text):
    path = folder / 'handlers.py'
    path.write_text(f'import datetime\n\nimport kopf\n\n{text}\n')
    return str(path)


@pytest.mark.parametrize('typed, read', HANDLERS, ids=[typed for typed, _ in HANDLERS])
@virtual_time
async def test_mistakes_in_handlers_are_explained_in_the_log(tmp_path, typed, read):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        operator = api.operator(write(tmp_path, typed))
        starting = asyncio.create_task(operator.start())  # it can fail, and be retried for ever
        await api.client.create('kopfexamples', 'obj', spec={'field': 'value'})
        await operator.wait_log(read)
        await operator.stop()
        await asyncio.wait([starting])
    assert 'Throttling' not in operator.text  # these are no errors of the framework


@pytest.mark.parametrize('typed, read', STARTS, ids=[typed for typed, _ in STARTS])
@virtual_time
async def test_mistakes_that_end_the_operator_are_explained(tmp_path, typed, read):
    async with testing.open_api('sandbox') as api:
        await api.client.load(CRD)
        with pytest.raises(Exception, match=read):
            async with api.operator(write(tmp_path, typed)) as operator:
                await operator.wait_log('never')


@virtual_time
async def test_misspelled_settings_are_warned_about_at_their_line(tmp_path):
    text = STARTUP + "def fn(settings, **_): settings.posting.enable = False"
    path = write(tmp_path, text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        async with testing.open_api('sandbox') as api:
            async with api.operator(path):
                pass
    [warning] = [each for each in caught if 'settings' in str(each.message)]
    assert warning.filename == path
    assert str(warning.message) == (
        "There is no settings.posting.enable, so it has no effect; "
        "did you mean settings.posting.enabled?")


def test_the_patterns_are_specific():
    assert all(len(re.sub(r'\W', '', read)) > 15 for _, read in HANDLERS + STARTS)
