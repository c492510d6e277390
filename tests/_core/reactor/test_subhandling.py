import asyncio

import pytest

import kopf
from kopf._core.intents.handlers import ChangingHandler
from kopf._core.intents.registries import ChangingRegistry
from tests._core.reactor.worlds import Api, Operator, run_virtually


def handle(registry, **spec):
    """Run an operator over an object until all is handled; returns the object."""
    async def main():
        api = Api()
        api.create(spec=spec)
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()
        return api.objects['obj']

    return run_virtually(main())


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


def get_time():
    return round(asyncio.get_running_loop().time())


def test_finished_subhandlers_are_not_executed_again_while_others_are_retried(registry):
    seen = []

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        seen.append(('entering', get_time()))
        await kopf.execute(fns={'a': create_a, 'b': create_b})
        seen.append(('leaving', get_time()))

    async def create_a(retry, **_):
        seen.append(('a', get_time()))
        if retry < 2:
            raise kopf.TemporaryError("Not ready yet.", delay=10)

    async def create_b(retry, **_):
        seen.append(('b', get_time()))
        if retry < 6:
            raise kopf.TemporaryError("Not ready yet.", delay=10)

    handle(registry)
    assert [time for what, time in seen if what == 'a'] == [0, 10, 20]
    assert [time for what, time in seen if what == 'b'] == [0, 10, 20, 30, 40, 50, 60]
    assert {time for what, time in seen if what == 'entering'} == {0, 10, 20, 30, 40, 50, 60}
    assert seen[-1] == ('leaving', 60)
    assert len([what for what, _ in seen if what == 'leaving']) == 1


def test_of_subhandlers_with_the_same_id_only_the_first_one_is_called_which_is_told_once(
        registry, caplog):
    seen = []

    @kopf.on.create('kopfexamples', id='create', registry=registry)
    def create(**_):
        for item in 'xyz':
            @kopf.subhandler(id='sub')
            def sub(item=item, retry=None, **_):
                seen.append(item)
                if retry < 2:
                    raise kopf.TemporaryError("Not ready yet.", delay=10)

    handle(registry)
    assert seen == ['x'] * 3
    told = [record.message for record in caplog.records if 'have the id' in record.message]
    assert told == [
        "3 sub-handlers have the id 'create/sub', so only the first one is called. "
        "Give each an id of its own, for example: @kopf.subhandler(id=item)"]


def test_of_handlers_with_the_same_id_only_the_first_one_is_called_which_is_told_once(
        registry, caplog):
    seen = []

    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def one(retry, **_):
        seen.append('one')
        if retry < 2:
            raise kopf.TemporaryError("Not ready yet.", delay=10)

    @kopf.on.resume('kopfexamples', id='fn', registry=registry)
    @kopf.on.create('kopfexamples', id='fn', registry=registry)
    def two(**_):
        seen.append('two')

    handle(registry)
    assert seen == ['one'] * 3
    told = [record.message for record in caplog.records if 'have the id' in record.message]
    assert told == [
        "2 handlers have the id 'fn', so only the first one is called. "
        "Give each an id of its own, for example: @kopf.on.update(..., id='another')"]


def test_what_only_subhandlers_have_seen_is_known_after_a_restart(registry):
    """The object changes while one of them runs, and the other one waits for its retry."""
    seen = []

    @kopf.on.create('kopfexamples', registry=registry)
    @kopf.on.update('kopfexamples', id='create', registry=registry)
    async def create(**_):
        await kopf.execute(fns={'a': create_a, 'b': create_b})

    async def create_a(spec, **_):
        await asyncio.sleep(1)
        seen.append(spec['field'])

    async def create_b(spec, **_):
        if spec['field'] == 1 and get_time() < 5:
            raise kopf.TemporaryError("Not ready yet.", delay=10)

    async def main():
        api = Api()
        api.create(spec={'field': 0})
        operator = Operator(api, registry)
        operator.start()
        await asyncio.sleep(0.5)
        api.edit({'spec': {'field': 1}})
        await asyncio.sleep(3)
        await operator.stop()
        successor = Operator(api, registry)
        successor.start()
        await successor.rest()
        await successor.stop()

    run_virtually(main())
    assert seen == [0, 1]


def run_children(**options):
    async def create(**_):
        await kopf.execute(**options)
    return create


def test_ready_made_handlers_can_be_executed(registry):
    seen = []
    child = ChangingHandler(fn=lambda name, **_: seen.append(name) or 'done', id='create/child')
    kopf.on.create('kopfexamples', id='create', registry=registry)(run_children(handlers=[child]))
    obj = handle(registry)
    assert seen == ['obj']
    assert obj['status'] == {'create/child': 'done'}


def test_registries_of_handlers_can_be_executed(registry):
    seen = []
    children = ChangingRegistry()
    for name in ('one', 'two'):
        children.append(ChangingHandler(
            fn=lambda param, **_: seen.append(param), id=f'create/{name}', param=name))
    kopf.on.create('kopfexamples', id='create', registry=registry)(run_children(registry=children))
    handle(registry)
    assert seen == ['one', 'two']


@pytest.mark.parametrize('decorator', [kopf.on.field, kopf.on.create])
def test_the_subhandlers_of_a_field_get_its_change_as_their_parent_does(registry, decorator):
    seen = {}

    def note(name):
        def fn(old, new, diff, **_):
            seen[name] = old, new, tuple(diff)
        return fn

    def check(old, new, diff, **_):
        seen['filter'] = old, new, tuple(diff)
        return True

    def child(**kwargs):
        note('child')(**kwargs)
        kopf.subhandler(id='grandchild')(note('grandchild'))
        kopf.subhandler(id='of-another-field', field='spec.other')(note('of-another-field'))

    @decorator('kopfexamples', field='spec.field', registry=registry)
    def parent(**kwargs):
        note('parent')(**kwargs)
        kopf.subhandler(id='child', when=check)(child)

    handle(registry, field={'a': 1}, other=2)
    of_the_field = None, {'a': 1}, (('add', (), None, {'a': 1}),)
    assert seen == {
        **dict.fromkeys(['parent', 'filter', 'child', 'grandchild'], of_the_field),
        'of-another-field': (None, 2, (('add', (), None, 2),)),
    }


def test_only_one_source_of_subhandlers_is_executed_at_once(registry):
    errors = []

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        try:
            await kopf.execute(fns=[], handlers=[])
        except TypeError as e:
            errors.append(str(e))

    handle(registry)
    assert errors == ["Only one of the fns, handlers, or registry can be executed at once."]


async def test_nothing_is_executed_outside_of_handlers():
    with pytest.raises(RuntimeError, match="only in the handlers"):
        await kopf.execute()


def test_handlers_can_exclude_themselves_for_ever_by_annotations(registry):
    seen = []

    @kopf.on.update('kopfexamples', field='spec.field', annotations={'never-again': kopf.ABSENT},
                    registry=registry)
    async def update_fn(patch, spec, **_):
        seen.append(spec['field'])
        patch.metadata.annotations['never-again'] = 'yes'
        raise kopf.PermanentError("Never call it again.")

    @kopf.daemon('kopfexamples', annotations={'not-again': kopf.ABSENT}, registry=registry)
    async def daemon_fn(patch, **_):
        seen.append('daemon')
        patch.metadata.annotations['not-again'] = 'yes'

    async def main():
        api = Api()
        api.create(spec={})
        for value in range(3):
            operator = Operator(api, registry)
            operator.start()
            await operator.rest()
            await asyncio.sleep(10)
            api.edit({'spec': {'field': value}})
            await asyncio.sleep(10)
            await operator.stop()

    run_virtually(main())
    assert seen == ['daemon', 0]


def test_handlers_that_have_failed_for_good_are_called_for_the_next_change(registry):
    seen = []

    @kopf.on.update('kopfexamples', field='spec.field', registry=registry)
    async def update_fn(spec, **_):
        seen.append(spec['field'])
        raise kopf.PermanentError("not now")

    async def main():
        api = Api()
        api.create(spec={})
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        for value in range(3):
            api.edit({'spec': {'field': value}})
            await asyncio.sleep(10)
        await operator.stop()

    run_virtually(main())
    assert seen == [0, 1, 2]


def test_an_error_of_the_api_between_subhandlers_is_none_of_their_parent(registry):
    retries = []

    @kopf.on.create('kopfexamples', errors=kopf.ErrorsMode.PERMANENT, registry=registry)
    async def create(retry, **_):
        retries.append(retry)
        await kopf.execute(fns={'a': create_a, 'b': create_b})

    async def create_a(patch, **_):
        patch.spec['a'] = 1

    async def create_b(patch, **_):
        patch.spec['b'] = 2

    async def main():
        api = Api()
        api.create(spec={})
        api.faults = ['before', 'before']
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()
        return api.objects['obj']

    assert run_virtually(main())['spec'] == {'a': 1, 'b': 2}
    assert set(retries) == {0, 1}  # the call for the second one


@pytest.mark.parametrize('number', range(6))
@pytest.mark.parametrize('part', ['spec', 'status', None])
@pytest.mark.parametrize('duration', [0, 0.6])
@pytest.mark.parametrize('fault', ['denied', 'after'])
def test_what_is_written_though_the_response_is_an_error_is_not_done_again(
        registry, calls, number, part, duration, fault):
    @kopf.on.create('kopfexamples', registry=registry)
    async def parent(**_):
        for which in range(4):
            @kopf.subhandler(id=f'sub{which}')
            async def sub(patch, which=which, **_):
                calls.append(which)
                if part is not None:
                    patch[part] = {f'field{which}': which}
                await asyncio.sleep(duration)

    async def run():
        api = Api()
        api.create(spec={})
        api.faults.extend([*[None] * number, fault])
        operator = Operator(api, registry)
        operator.start()
        await operator.rest()
        await operator.stop()

    run_virtually(run())
    assert calls == [0, 1, 2, 3]


@pytest.mark.parametrize('is_nested', [False, True])
def test_the_finalizer_is_added_before_the_next_subhandler_needs_it(registry, is_nested):
    """The watch is late; only the response to the write between them shows the new label."""
    finalizers = []

    @kopf.on.delete('kopfexamples', labels={'on': 'yes'}, registry=registry)
    async def delete(**_):
        pass

    @kopf.on.create('kopfexamples', registry=registry)
    async def create(**_):
        await kopf.execute(fns={'a': create_more if is_nested else create_a, 'b': create_b})

    async def create_more(**_):
        await kopf.execute(fns={'a': create_a})

    async def create_a(patch, **_):
        await asyncio.sleep(1)
        patch.spec['a'] = 1

    async def create_b(meta, **_):
        finalizers.append((meta.get('labels'), bool(meta.get('finalizers'))))

    async def main():
        api = Api()
        api.create(spec={})
        operator = Operator(api, registry, watch_delay=2)
        operator.settings.persistence.flush_delay = 0.0
        operator.start()
        await asyncio.sleep(0.5)
        api.edit({'metadata': {'labels': {'on': 'yes'}}})
        await operator.rest()
        await operator.stop()

    run_virtually(main())
    assert finalizers == [({'on': 'yes'}, True)]
