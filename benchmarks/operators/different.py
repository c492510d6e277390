"""
Random handlers by a seed, the same in both versions of Kopf: they record with what they are called.

Where the versions differ on purpose, as the page about the migration says, there are no such
handlers: filters by functions for absent fields, timeouts, handlers for any change of a field,
timers that fail permanently, functions that are declared for resuming before they are for changes.
"""

import json
import os
import random
from collections.abc import Callable
from typing import Any

import kopf

KIND = (os.environ['BENCH_GROUP'], 'v1', os.environ['BENCH_PLURAL'])
READY = (os.environ['BENCH_GROUP'], 'v1', os.environ['BENCH_READY'])
FIELDS = ['spec.x', 'spec.y', 'spec.d', 'spec.d.k', 'spec.li', 'status.s', 'metadata.labels.l0']
REASONS = ['create', 'update', 'delete', 'field', 'resume']
KINDS = [*REASONS, *REASONS, 'event', 'timer', 'daemon', 'index']

Fn = Callable[..., Any]

rng = random.Random(os.environ['BENCH_SEED'])
file = open(os.environ['BENCH_CALLS'], 'a', encoding='utf-8', buffering=1)  # noqa: SIM115
attempts: dict[tuple[str, str], int] = {}
storages = rng.choice([
    {}, {}, {'progress_storage': kopf.StatusProgressStorage()},
    {'progress_storage': kopf.AnnotationsProgressStorage(prefix='example.com')},
    {'diffbase_storage': kopf.AnnotationsDiffBaseStorage(prefix='example.com', key='handled')},
    {'diffbase_storage': kopf.StatusDiffBaseStorage()}])


def record(id: str, kwargs: dict[str, Any]) -> None:
    """Write what a handler has got, apart from the times."""
    call = {'id': id, 'kwargs': sorted(set(kwargs) - {'resource'})}
    for key in ('name', 'retry', 'param', 'reason', 'type', 'spec', 'labels', 'old', 'new'):
        if key in kwargs:
            call[key] = kwargs[key]
    if 'diff' in kwargs:
        call['diff'] = sorted(([str(op), *rest] for op, *rest in kwargs['diff']), key=repr)
    file.write(json.dumps(call, sort_keys=True, default=simplify) + '\n')


def simplify(value: Any) -> Any:
    return dict(value) if hasattr(value, 'keys') else str(value)


def is_known(value: Any, **_: Any) -> bool:
    return value in ('a', 2, [1, 2])


def is_wanted(spec: kopf.Spec, **_: Any) -> bool:
    return spec.get('x') != 1


def pick_criterion() -> Any:
    return rng.choice(['a', 'b', 1, 2, kopf.PRESENT, kopf.ABSENT, is_known])


def pick_options(decorator: str) -> dict[str, Any]:
    """Pick filters and options that the decorator takes."""
    options: dict[str, Any] = {}
    if rng.random() < .25:
        options['labels'] = {rng.choice(['l0', 'l1']): pick_criterion()}
    if rng.random() < .15:
        options['annotations'] = {rng.choice(['n0', 'n1']): pick_criterion()}
    if rng.random() < .15:
        options['when'] = is_wanted
    if decorator == 'field' or rng.random() < .3:
        options['field'] = rng.choice(FIELDS)
        criteria = ['value'] if decorator not in ('update', 'field') else rng.choice(
            [['value'], ['old'], ['new'], ['old', 'new']])
        if decorator == 'field' or rng.random() < .7:
            options |= {name: pick_criterion() for name in criteria}
        if decorator == 'create' and options.get('value') is kopf.ABSENT:
            options['value'] = kopf.PRESENT
    if rng.random() < .3:
        options['param'] = rng.choice([1, 'p', {'a': 1}])
    if decorator in ('delete', 'resume') and rng.random() < .3:
        options['optional' if decorator == 'delete' else 'deleted'] = True
    if decorator not in ('event', 'index', 'timer'):
        if rng.random() < .2:
            options['retries'] = rng.choice([2, 3])
        if rng.random() < .2:
            options['backoff'] = 0.2
        if rng.random() < .15:
            options['errors'] = rng.choice(list(kopf.ErrorsMode))
    if decorator == 'timer':
        options |= {'interval': 1000, **rng.choice([{}, {'initial_delay': 0.2}, {'idle': 0.3}])}
    return options


def pick_action(decorator: str, id: str) -> Fn:
    """Pick what a handler does after its call is recorded."""
    chance, failures = rng.random(), rng.choice([1, 2, 4])

    def act(name: str, spec: Any, patch: Any, **_: Any) -> Any:
        attempts[id, name] = attempts.get((id, name), 0) + 1
        is_failing = attempts[id, name] <= failures
        match int(chance * 20):
            case 0 if is_failing:
                raise kopf.TemporaryError("once more", delay=0.2)
            case 1 if is_failing:
                raise ValueError("boo")
            case 2 if decorator != 'timer':
                raise kopf.PermanentError("never")
            case 3 | 4 | 5 | 6:
                return {'x': spec.get('x')}
            case 7 | 8:
                patch.status[f'by-{id}'] = spec.get('x')
            case 9:
                patch.spec['z'] = str(spec.get('x'))
            case 10:
                patch.meta.annotations['m'] = str(spec.get('x'))
            case 11 if 'diff' in _:
                for child in ('s1', 's2'):
                    kopf.subhandler(id=child)(
                        lambda child=child, **kwargs: record(f'{id}/{child}', kwargs))
        return None

    return act


def make_handler(decorator: str, id: str) -> Fn:
    act = pick_action(decorator, id)
    if decorator == 'event':
        return lambda **kwargs: record(id, kwargs)
    if decorator == 'index':
        return lambda name, spec, **_: {name: spec.get('x')}

    def handle(**kwargs: Any) -> Any:
        record(id, kwargs)
        return act(**kwargs)

    async def handle_async(**kwargs: Any) -> Any:
        return handle(**kwargs)

    async def stay(stopped: Any, **kwargs: Any) -> None:
        record(id, kwargs)
        await stopped.wait(1000)

    return stay if decorator == 'daemon' else rng.choice([handle, handle_async])


def declare(id: str) -> None:
    decorators = [rng.choice(KINDS)]
    if decorators[0] in REASONS and rng.random() < .3:
        decorators.append(rng.choice(['create', 'update', 'resume', 'delete']))
    fn = make_handler(decorators[0], id)
    for decorator in sorted(set(decorators), key=KINDS.index):
        options = pick_options(decorator)
        getattr(kopf.on, decorator)(*KIND, id=id, **options)(fn)
        print(f"@kopf.on.{decorator}(id={id!r}, **{options})")


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.enabled = False
    settings.execution.default_backoff = 0.3
    for name, storage in storages.items():
        setattr(settings.persistence, name, storage)
    settings.persistence.consistency_timeout = 0.5  # of the release, after its empty patches


@kopf.on.event(*READY)
def ready(name: str, **_: Any) -> None:
    file.write(json.dumps({'ready': name}) + '\n')


kopf.on.create(*KIND, id='never', labels={'never': 'x'})(lambda **_: None)
for number in range(rng.randint(4, 9)):
    declare(f'h{number}')
