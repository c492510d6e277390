"""
One attempt of one handler: what it is called with, what comes of it, and who is told.
"""
import asyncio
import concurrent.futures
import contextvars
import datetime
import logging
import threading
import types

import pytest

import kopf
from kopf._cogs.aiokits.clocks import Clock
from kopf._cogs.structs import bodies, diffs, patches, references
from kopf._core.actions import execution, observers, progression, subhandling, tracebacks
from kopf._core.intents import causes, handlererrors, handlers, registries

pytestmark = pytest.mark.looptime

RESOURCE = references.Resource('kopf.dev', 'v1', 'kopfexamples', kind='KopfExample')
RAW = {
    'metadata': {'name': 'x', 'namespace': 'ns', 'uid': 'u', 'labels': {'l': 'v'}},
    'spec': {'size': 2}, 'status': {'s': 't'},
}
OLD, NEW = {'spec': {'size': 1, 'color': 'red'}}, {'spec': {'size': 2, 'color': 'red'}}
INDEX = {'key': ['value']}

DECLARATIONS = {
    handlers.ActivityHandler: {'activity': causes.Activity.STARTUP},
    handlers.IndexingHandler: {},
    handlers.WatchingHandler: {},
    handlers.ChangingHandler: {},
    handlers.DaemonHandler: {},
    handlers.TimerHandler: {},
    handlers.WebhookHandler: {'reason': 'mutating'},
}
KINDS = pytest.mark.parametrize('kind', DECLARATIONS)
STORED = {handlers.WatchingHandler, handlers.ChangingHandler, handlers.DaemonHandler,
          handlers.TimerHandler}


def declare(fn, kind=handlers.ChangingHandler, **options):
    return kind(fn=fn, id='fn', **{**DECLARATIONS[kind], **options})


def make_cause(kind=handlers.ChangingHandler, indices={}):
    common = {'logger': logging.getLogger('kopf.objects'), 'memo': kopf.Memo(), 'indices': indices}
    if kind is handlers.ActivityHandler:
        return causes.ActivityCause(
            **common, activity=causes.Activity.STARTUP, settings=kopf.OperatorSettings())
    body = bodies.Body(RAW)
    common |= {'resource': RESOURCE, 'body': body, 'patch': patches.Patch(body=body)}
    states = {'diff': diffs.diff(OLD, NEW), 'old': OLD, 'new': NEW}
    if kind is handlers.IndexingHandler:
        return causes.IndexingCause(**common)
    if kind is handlers.WatchingHandler:
        return causes.WatchingCause(
            **common, type='ADDED', event={'type': 'ADDED', 'object': RAW})
    if kind is handlers.ChangingHandler:
        return causes.ChangingCause(
            **common, **states, reason=causes.Reason.UPDATE, initial=False)
    if kind is handlers.WebhookHandler:
        return causes.WebhookCause(
            **common, **states, operation='UPDATE', subresource=None, dryrun=False, warnings=[],
            userinfo={}, headers={}, sslpeer=None)
    return causes.SpawningCause(**common, identity=('u', 'x', 'ns'))


def make_context(observer=None):
    return execution.Context(
        settings=kopf.OperatorSettings(), clock=Clock(), indices={},
        observer=observers.Notifier(() if observer is None else [observer]))


@pytest.fixture()
def executor():
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        yield executor


async def execute(handler, *, indices={}, observer=None, **options):
    return await execution.execute(
        handler, make_cause(type(handler), indices), context=make_context(observer), **options)


def make_state(*, retries=0, age=0.0):
    now = Clock().now()
    return progression.HandlerState(
        started=now.wall - datetime.timedelta(seconds=age), began=now.mono - age, retries=retries)


# Errors & limits.


def raise_(error):
    async def fn(**_):
        raise error
    return fn


@pytest.mark.parametrize('limits, state, expected', [
    ({}, {}, (False, 60)),
    ({'retries': 3}, {'retries': 1}, (False, 60)),
    ({'timeout': 9}, {'age': 8}, (False, 60)),
    ({'retries': 2}, {'retries': 1}, (True, None)),
], ids=['unlimited', 'retries-left', 'time-left', 'last-retry'])
@pytest.mark.parametrize('mode', [None, *handlererrors.ErrorsMode])
@pytest.mark.parametrize('error', [
    kopf.PermanentError("boo"), kopf.TemporaryError("boo", delay=5), ValueError("boo")],
    ids=['permanent', 'temporary', 'arbitrary'])
async def test_what_errors_mean(error, mode, limits, state, expected):
    outcome = await execute(
        declare(raise_(error), errors=mode, **limits), state=make_state(**state))
    final, delay = expected
    match error, mode:
        case kopf.PermanentError(), _:
            assert (outcome.final, outcome.exception) == (True, error)
        case kopf.TemporaryError(), _ if final:
            assert outcome.final
            assert isinstance(outcome.exception, kopf.HandlerRetriesError)
        case kopf.TemporaryError(), _:
            assert (outcome.final, outcome.exception, outcome.delay) == (False, error, 5)
        case _, handlererrors.ErrorsMode.IGNORED:
            assert (outcome.final, outcome.exception, outcome.result) == (True, None, None)
        case _, handlererrors.ErrorsMode.PERMANENT:
            assert (outcome.final, outcome.exception) == (True, error)
        case _:
            assert (outcome.final, outcome.exception, outcome.delay) == (final, error, delay)


class CarelessError(kopf.TemporaryError):
    def __init__(self, host):
        self.host = host


class WrongError(kopf.TemporaryError):
    def __init__(self, delay):
        super().__init__("boo")
        self.delay = delay


async def test_errors_of_subclasses_that_do_not_call_the_constructor_are_temporary():
    outcome = await execute(declare(raise_(CarelessError('example.com'))))
    assert (outcome.final, outcome.delay, outcome.message) == (False, 60, 'example.com')


@pytest.mark.parametrize('delay', [datetime.timedelta(seconds=5), '5', float('nan')])
async def test_errors_of_subclasses_with_delays_that_are_no_numbers_are_arbitrary(delay, caplog):
    outcome = await execute(declare(raise_(WrongError(delay)), backoff=7, retries=2))
    assert (outcome.final, outcome.delay, type(outcome.exception)) == (False, 7, TypeError)
    [record] = [record for record in caplog.records if record.levelname == 'ERROR']
    assert f"delay= must be a number of seconds, not {delay!r}" in record.message
    assert record.exc_info[2] is not None


@pytest.mark.parametrize(('delay', 'when'), [
    (5, " (will try again in 5 seconds)"), (0.5, " (will try again in 0.5 seconds)"),
    (1, " (will try again in 1 second)"),
    (None, " (will try again at once)"), (0, " (will try again at once)"),
    (-1, " (will try again at once)")])
async def test_temporary_errors_say_when_the_next_attempt_is(caplog, delay, when):
    await execute(declare(raise_(kopf.TemporaryError("boo", delay=delay))))
    assert f"Handler 'fn' failed temporarily: boo{when}" in caplog.messages


@pytest.mark.parametrize('kind', [
    handlers.WatchingHandler, handlers.IndexingHandler, handlers.WebhookHandler])
async def test_temporary_errors_promise_no_attempt_to_handlers_that_are_not_retried(caplog, kind):
    await execute(declare(raise_(kopf.TemporaryError("boo", delay=5)), kind))
    assert caplog.messages[-1].endswith(" failed temporarily: boo")


@pytest.mark.parametrize('limits, state, error', [
    ({'retries': 1}, {'retries': 1}, kopf.HandlerRetriesError),
    ({'retries': 0}, {}, kopf.HandlerRetriesError),
    ({'timeout': 9}, {'age': 9}, kopf.HandlerTimeoutError),
    ({'timeout': 9, 'retries': 1}, {'age': 9, 'retries': 1}, kopf.HandlerTimeoutError),
])
async def test_nothing_is_called_beyond_the_limits(limits, state, error):
    calls = []
    handler = declare(lambda **_: calls.append(1), **limits)
    outcome = await execute(handler, state=make_state(**state))
    assert outcome.final
    assert isinstance(outcome.exception, error)
    assert not calls


async def test_async_handlers_are_interrupted_when_their_time_is_over():
    async def fn(**_):
        await asyncio.sleep(100)

    loop = asyncio.get_running_loop()
    began = loop.time()
    outcome = await execute(declare(fn, timeout=9), state=make_state(age=4))
    assert loop.time() - began == pytest.approx(5, abs=0.1)
    assert outcome.final
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError)


async def test_handlers_see_the_timeout_and_can_clean_up():
    seen = []

    async def fn(**_):
        try:
            await asyncio.sleep(100)
        except TimeoutError:
            seen.append(asyncio.current_task().cancelling())
            await asyncio.sleep(1)
            seen.append("cleaned up")
            raise

    outcome = await execute(declare(fn, timeout=9))
    assert seen == [0, "cleaned up"]
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError)


async def test_whatever_is_raised_after_the_timeout_the_handler_has_timed_out():
    async def fn(**_):
        try:
            await asyncio.sleep(100)
        except TimeoutError as e:
            raise kopf.TemporaryError("Once more.") from e

    outcome = await execute(declare(fn, timeout=9))
    assert outcome.final
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError)


async def test_handlers_that_go_on_after_the_timeout_have_their_results():
    async def fn(**_):
        try:
            await asyncio.sleep(100)
        except TimeoutError:
            await asyncio.sleep(1000)
            return "late"

    outcome = await execute(declare(fn, timeout=9))
    assert outcome.final
    assert (outcome.exception, outcome.result) == (None, "late")


async def test_the_timeout_interrupts_the_subhandlers_of_the_handler():
    seen = []

    async def sub(**_):
        try:
            await asyncio.sleep(100)
        except TimeoutError:
            seen.append("sub")
            raise

    async def fn(**_):
        try:
            await execute(declare(sub))
        except TimeoutError:
            seen.append("parent")
            raise

    outcome = await execute(declare(fn, timeout=9))
    assert seen == ["sub", "parent"]
    assert isinstance(outcome.exception, kopf.HandlerTimeoutError)


async def test_handlers_with_a_timeout_can_be_located():
    async def fn(**_):
        await asyncio.sleep(100)

    task = asyncio.create_task(execute(declare(fn, timeout=9)))
    await asyncio.sleep(1)
    assert tracebacks.locate(tracebacks.find_awaiting(task)) == (
        f'{__file__}:{fn.__code__.co_firstlineno + 1} fn()')
    await task


async def test_a_first_attempt_needs_no_state():
    seen = {}

    async def fn(**kwargs):
        seen.update(kwargs)

    await execute(declare(fn))
    assert (seen['retry'], seen['runtime']) == (0, datetime.timedelta(0))
    assert datetime.datetime.now(datetime.UTC) - seen['started'] < datetime.timedelta(minutes=1)


async def test_cancellations_get_out_if_they_are_for_the_caller():
    async def fn(**_):
        await asyncio.sleep(100)

    task = asyncio.create_task(execute(declare(fn)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellations_of_what_the_handler_waits_for_are_its_errors():
    async def fn(**_):
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    outcome = await execute(declare(fn))
    assert isinstance(outcome.exception, asyncio.CancelledError)
    assert not outcome.final


class Panic(BaseException):
    """As the libraries in Rust raise it, if they are built with PyO3."""


@pytest.mark.parametrize('is_async', [True, False])
async def test_panics_are_errors_of_their_handlers(is_async):
    def panic(**_):
        raise Panic("boo")

    async def panic_async(**_):
        panic()

    outcome = await execute(declare(panic_async if is_async else panic, backoff=5))
    assert isinstance(outcome.exception, Panic)
    assert (outcome.final, outcome.delay, outcome.message) == (False, 5, "boo")


@pytest.mark.parametrize('error', [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_exits_of_the_process_get_out(error):
    async def fn(**_):
        raise error

    with pytest.raises(error):
        execute(declare(fn)).send(None)  # a task would end the event loop


async def test_errors_of_filters_are_errors_of_their_handlers():
    calls = []
    error = ValueError("boo")
    outcome = await execute(
        declare(lambda **_: calls.append(1), errors=handlererrors.ErrorsMode.PERMANENT),
        filter_error=error)
    assert (outcome.final, outcome.exception) == (True, error)
    assert not calls


# What depends on the kind of the handler.


def test_each_kind_of_handlers_has_its_policy():
    def iter_kinds(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from iter_kinds(child)

    abstract = {handlers.Handler, handlers.ResourceHandler, handlers.SpawningHandler,
                handlers.ExternalHandler}  # its functions are other handlers
    assert set(execution.POLICIES) == set(iter_kinds(handlers.Handler)) - abstract


COMMON = {'logger', 'memo', 'param', 'retry', 'started', 'runtime', 'index'}
OBJECT = COMMON | {'resource', 'patch', 'body', 'spec', 'meta', 'status', 'uid', 'name',
                   'namespace', 'labels', 'annotations'}


@pytest.mark.parametrize('kind, expected', [
    (handlers.ActivityHandler, COMMON | {'activity', 'settings'}),
    (handlers.IndexingHandler, OBJECT),
    (handlers.WatchingHandler, OBJECT | {'event', 'type'}),
    (handlers.ChangingHandler, OBJECT | {'reason', 'diff', 'old', 'new'}),
    (handlers.DaemonHandler, OBJECT | {'stopped'}),
    (handlers.TimerHandler, OBJECT | {'stopped'}),
    (handlers.WebhookHandler, OBJECT | {
        'operation', 'subresource', 'dryrun', 'warnings', 'headers', 'sslpeer', 'userinfo',
        'diff', 'old', 'new'}),
])
async def test_the_kwargs_are_complete(kind, expected):
    seen = {}

    async def fn(**kwargs):
        seen.update(kwargs)

    extras = {'stopped': object()} if issubclass(kind, handlers.SpawningHandler) else None
    state = make_state(retries=2, age=3)
    await execute(declare(fn, kind, param='p'), state=state, extras=extras,
                  indices={'index': INDEX})
    assert set(seen) == expected
    assert (seen['param'], seen['retry'], seen['started']) == ('p', 2, state.started)
    assert seen['runtime'].total_seconds() == pytest.approx(3, abs=0.1)
    assert seen['index'] is INDEX
    assert extras is None or seen['stopped'] is extras['stopped']


@KINDS
@pytest.mark.parametrize('name', [
    'logger', 'memo', 'param', 'retry', 'patch', 'old', 'spec', 'stopped', 'activity'])
async def test_indices_win_over_kwargs_of_the_same_names(kind, name):
    seen = {}

    async def fn(**kwargs):
        seen.update(kwargs)

    await execute(declare(fn, kind, field=('spec',)) if kind is not handlers.ActivityHandler
                  else declare(fn, kind), indices={name: INDEX}, extras={'stopped': object()})
    assert seen[name] is INDEX


async def test_changes_are_narrowed_to_the_field():
    seen = {}

    async def fn(old, new, diff, body, **_):
        seen.update(old=old, new=new, diff=diff, body=body)

    await execute(declare(fn, field=('spec', 'size')))
    assert (seen['old'], seen['new']) == (1, 2)
    assert seen['diff'] == (('change', (), 1, 2),)
    assert seen['body'] == RAW
    await execute(declare(fn, field=('spec', 'absent')))
    assert (seen['old'], seen['new'], seen['diff']) == (None, None, ())


async def test_reviewed_objects_are_not_narrowed_to_the_field():
    seen = {}

    async def fn(old, new, **_):
        seen.update(old=old, new=new)

    await execute(declare(fn, handlers.WebhookHandler, field=('spec', 'size')))
    assert seen == {'old': OLD, 'new': NEW}


@KINDS
async def test_arbitrary_errors_mean_what_is_usual_for_the_kind(kind):
    outcome = await execute(declare(raise_(ValueError("boo")), kind))
    if kind in {handlers.IndexingHandler, handlers.WatchingHandler}:
        assert (outcome.final, outcome.exception) == (True, None)
    else:
        assert outcome.final is (kind is handlers.WebhookHandler)
        assert isinstance(outcome.exception, ValueError)


@KINDS
@pytest.mark.parametrize('result', [object(), {'key': {1, 2}}, float('nan')],
                         ids=['object', 'set', 'nan'])
async def test_only_results_that_are_stored_must_be_json(kind, result):
    async def fn(**_):
        return result

    outcome = await execute(declare(fn, kind))
    assert outcome.final
    if kind in STORED:
        assert isinstance(outcome.exception, kopf.PermanentError)
        assert outcome.result is None
    else:
        assert outcome.result is result


@pytest.mark.parametrize('result', [
    bodies.Body({'spec': {'a': [1]}}).spec, types.MappingProxyType({'a': [1]}),
])
async def test_results_that_are_mappings_are_stored_as_dicts(result):

    async def fn(**_):
        return result

    outcome = await execute(declare(fn))
    assert (type(outcome.result), outcome.result) == (dict, {'a': [1]})


async def test_results_and_patches_are_as_the_api_returns_them():
    given = {1: ('a', None)}

    async def fn(patch, **_):
        patch.spec['given'] = given
        return given

    outcome = await execute(declare(fn))
    given.clear()  # it belongs to the author
    assert outcome.result == {'1': ['a', None]}
    assert outcome.patch == {'spec': {'given': {'1': ['a', None]}}}


@KINDS
async def test_logs_name_the_handler_by_its_kind(kind, caplog):
    async def fn(**_):
        pass

    caplog.set_level('DEBUG', logger='kopf.objects')
    handler = declare(fn, kind)
    await execute(handler)
    assert caplog.messages == [f'{handler!r} is invoked.', f'{handler!r} succeeded.']


# Patches.


@pytest.mark.parametrize('kind', [*DECLARATIONS][1:])
async def test_only_handlers_of_changes_have_patches_of_their_own(kind):
    seen = []

    async def fn(patch, **_):
        seen.append(patch)
        patch['spec'] = {'size': 3}

    cause = make_cause(kind)
    outcome = await execution.execute(declare(fn, kind), cause, context=make_context())
    if kind is handlers.ChangingHandler:
        assert (outcome.patch, cause.patch) == ({'spec': {'size': 3}}, {})
        assert outcome.patch.as_json_patch() == [
            {'op': 'replace', 'path': '/spec/size', 'value': 3}]
    else:
        assert seen[0] is cause.patch
        assert outcome.patch is None


@pytest.mark.parametrize('error', [None, kopf.TemporaryError("boo"), kopf.PermanentError("boo")])
async def test_patches_count_whatever_comes_of_the_handler(error):
    async def fn(patch, **_):
        patch.status['done'] = True
        if error is not None:
            raise error

    outcome = await execute(declare(fn))
    assert (outcome.patch, outcome.exception) == ({'status': {'done': True}}, error)


@pytest.mark.parametrize('value', [object(), float('inf'), {1}], ids=['object', 'inf', 'set'])
@pytest.mark.parametrize('error', [None, kopf.TemporaryError("boo")])
async def test_patches_that_are_not_json_make_the_handler_fail(value, error, caplog):
    async def fn(patch, **_):
        patch.status['done'] = value
        if error is not None:
            raise error

    outcome = await execute(declare(fn))
    assert (outcome.final, outcome.patch, outcome.result) == (True, None, None)
    assert "its patch is not JSON" in str(outcome.exception)
    assert "Handler 'fn' failed permanently: its patch is not JSON" in caplog.text


@pytest.mark.parametrize('metadata', [None, 5, ['x']])
async def test_patches_that_replace_the_metadata_make_the_handler_fail(metadata, caplog):
    async def fn(patch, **_):
        patch['metadata'] = metadata

    outcome = await execute(declare(fn))
    assert (outcome.final, outcome.patch) == (True, None)
    text = f"'fn' failed permanently: its patch replaces the metadata with {metadata}"
    assert text in caplog.text


# Sub-handlers.


async def test_sub_handlers_that_are_only_declared_are_executed_after_the_handler(executor):
    executed = []

    async def run(children, lifecycle, cause):
        executed.extend(child.id for child in children)

    def fn(**_):
        kopf.register(lambda **_: None, id='sub')
        assert not executed

    handler = declare(fn)
    outcome = await execute(
        handler, family=subhandling.Family(handler, run), executor=executor)
    assert outcome.exception is None
    assert executed == ['fn/sub']
    assert outcome.subrefs == {'fn/sub'}
    assert registries.parent_var.get(None) is None


async def test_parents_wait_for_sub_handlers_that_are_left():
    async def run(children, lifecycle, cause):
        raise handlererrors.HandlerChildrenRetry(delay=7)

    async def fn(patch, **_):
        patch.status['seen'] = True
        kopf.register(lambda **_: None, id='sub')

    handler = declare(fn)
    outcome = await execute(handler, family=subhandling.Family(handler, run))
    assert (outcome.final, outcome.waiting, outcome.delay) == (False, True, 7)
    assert (outcome.subrefs, outcome.patch) == ({'fn/sub'}, {'status': {'seen': True}})


# Observers.

span = contextvars.ContextVar('span', default=None)


class Observer(observers.Observer):
    def __init__(self):
        self.told = []

    def attempt(self, handler, cause):
        self.told.append((handler.id, cause))
        token = span.set(f'span of {handler.id}')

        def ended(outcome, error, seconds):
            span.reset(token)
            self.told.append((handler.id, outcome, error, seconds))

        return ended


@KINDS
async def test_observers_are_told_of_attempts_from_their_beginning(kind):
    observer = Observer()
    seen = []

    async def fn(**_):
        seen.extend(id for id, *_ in observer.told)
        await asyncio.sleep(3)

    outcome = await execute(declare(fn, kind), observer=observer)
    (_, cause), (_, told, error, seconds) = observer.told
    assert seen == ['fn']
    assert type(cause) is type(make_cause(kind))
    assert (told, error) == (outcome, None)
    assert seconds == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize('limits', [{}, {'retries': 0}], ids=['failing', 'not called at all'])
async def test_observers_are_told_of_failures(limits):
    observer = Observer()
    outcome = await execute(declare(raise_(ValueError("boo")), **limits), observer=observer)
    assert observer.told[1][1] is outcome
    assert outcome.exception is not None


async def test_observers_are_told_of_cancellations():
    observer = Observer()

    async def fn(**_):
        await asyncio.sleep(100)

    task = asyncio.create_task(execute(declare(fn), observer=observer))
    await asyncio.sleep(2)
    task.cancel()
    await asyncio.wait([task])
    _, (_, outcome, error, seconds) = observer.told
    assert outcome is None
    assert isinstance(error, asyncio.CancelledError)
    assert seconds == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize('is_async', [True, False])
async def test_the_context_that_observers_set_is_that_of_the_handler(is_async, executor):
    seen = []

    async def async_fn(**_):
        seen.append(span.get())

    def sync_fn(**_):
        seen.append(span.get())

    handler = declare(async_fn if is_async else sync_fn)
    await execute(handler, observer=Observer(), executor=executor)
    assert seen == ['span of fn']
    assert span.get() is None


@pytest.mark.parametrize('moment', ['beginning', 'end'])
async def test_observers_that_fail_hurt_nobody_and_are_named_once(moment, caplog):
    class FailingObserver(observers.Observer):
        def attempt(self, handler, cause):
            if moment == 'beginning':
                raise ValueError("of the observer")

            def ended(outcome, error, seconds):
                raise ValueError("of the observer")

            return ended

    async def fn(**_):
        return 'result'

    context = make_context(FailingObserver())
    for _ in range(2):
        outcome = await execution.execute(declare(fn), make_cause(), context=context)
        assert (outcome.result, outcome.exception) == ('result', None)
    record, = [record for record in caplog.records if 'of the observer' in record.getMessage()]
    assert 'FailingObserver' in record.getMessage()
    assert record.exc_info


# Threads.


@pytest.mark.parametrize('kind', [handlers.ActivityHandler, handlers.WebhookHandler])
async def test_sync_handlers_of_the_operator_and_of_admission_wait_for_no_threads_of_others(kind):
    context, gate = make_context(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        context.settings.execution.executor = executor
        occupied = executor.submit(gate.wait)
        try:
            outcome = await execution.execute(
                declare(lambda **_: "done", kind), make_cause(kind), context=context)
            assert not occupied.done()
        finally:
            gate.set()
    assert outcome.result == "done"


@KINDS
async def test_an_executor_of_the_author_is_for_sync_handlers_of_objects_only(kind):
    context = make_context()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix='of-the-test') as executor:
        context.settings.execution.executor = executor
        outcome = await execution.execute(
            declare(lambda **_: threading.current_thread().name, kind), make_cause(kind),
            context=context)
    assert (outcome.result == 'of-the-test_0') == (
        kind not in (handlers.ActivityHandler, handlers.WebhookHandler))
