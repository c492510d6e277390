import dataclasses
from typing import Any

import kopf
from kopf._kits import operatorchecks
from kopf._kits.typed import kinds


def check(declare):
    registry = kopf.OperatorRegistry()
    declare(registry)
    return list(operatorchecks.describe(registry)), list(operatorchecks.find_faults(registry))


def test_all_kinds_of_handlers_are_described_by_their_decorators():
    def declare(registry):
        def fn(**_):
            pass

        kopf.on.startup(registry=registry)(fn)
        kopf.on.create('things', registry=registry, id='fn')(fn)
        kopf.on.resume('things', registry=registry, id='fn')(fn)
        kopf.on.field('things', field='spec.x', registry=registry, id='fn')(fn)
        kopf.on.event('things', registry=registry, id='fn')(fn)
        kopf.index('things', registry=registry, id='fn')(fn)
        kopf.timer('things', interval=5, registry=registry, id='fn')(fn)
        kopf.daemon('others', registry=registry, id='fn')(fn)
        kopf.reconcile('others', interval=9, registry=registry, id='fn')(fn)
        kopf.on.validate('others', operations={'UPDATE', 'CREATE'}, registry=registry, id='fn')(fn)

    lines, faults = check(declare)
    assert [line.replace(declare.__qualname__ + '.<locals>.', '') for line in lines] == [
        "The operator: startup fn",
        "things: index fn",
        "things: event fn",
        "things: timer fn interval=5",
        "things: create fn",
        "things: resume fn",
        "things: field fn/spec.x field=spec.x",
        "others: daemon fn",
        "others: reconcile fn interval=9",
        "others: validate fn operations=CREATE,UPDATE",
    ]
    assert not faults


def test_filters_and_limits_are_described():
    def is_it(**_):
        return True

    def declare(registry):
        kopf.on.create(
            'kopf.dev', 'v1', 'things', labels={'a': kopf.PRESENT, 'b': 'c'}, when=is_it,
            errors=kopf.ErrorsMode.PERMANENT, retries=3, timeout=1.5, registry=registry, id='fn',
        )(lambda **_: None)

    [line], _ = check(declare)
    assert line == (
        f"things.v1.kopf.dev: create fn labels={{a: PRESENT, b: 'c'}} when={is_it.__qualname__} "
        f"errors=PERMANENT timeout=1.5 retries=3")


def test_reconcilers_are_described_with_the_kinds_that_they_own():
    def declare(registry):
        kopf.reconcile(
            'things', owns=['deployments.apps', ('', 'v1', 'configmaps')], interval=60, prune=False,
            conditions=True, registry=registry, id='fn')(lambda **_: None)
        kopf.reconcile('things', registry=registry, id='bare')(lambda **_: None)

    lines, _ = check(declare)
    assert lines == [
        "things: reconcile fn owns=deployments.apps,configmaps.v1 prune=False conditions=True "
        "interval=60",
        "things: reconcile bare"]


def test_handlers_of_the_same_id_are_faults():
    def declare(registry):
        for _ in range(2):
            @kopf.on.create('things', registry=registry, id='fn')
            def fn(**_):
                pass

    _, [fault] = check(declare)
    assert fault.startswith("things: two handlers have the id 'fn': ")
    assert fault.count(__file__) == 2


def test_unknown_indices_of_reconcilers_are_faults():
    def declare(registry):
        def fn(reason, children, **_):
            pass

        kopf.index('things', registry=registry, id='known')(lambda **_: {})
        kopf.reconcile('things', watches={'secrets': 'known', 'configmaps': 'unknown'},
                       registry=registry, id='fn')(fn)

    assert check(declare)[1] == [
        "Reconciler 'fn' watches configmaps by the index 'unknown', but there is no such index. "
        "Declare it with @kopf.index(..., id='unknown')."]


def test_async_filters_are_faults():
    async def is_it(**_):
        return False

    def declare(registry):
        kopf.on.create('things', when=is_it, registry=registry, id='fn')(lambda **_: None)

    _, [fault] = check(declare)
    assert fault.startswith("things: the filter when= of 'fn' is async")


@dataclasses.dataclass
class LackingStatus:
    ready: bool = False


@dataclasses.dataclass
class CompleteStatus(LackingStatus):
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)
    billing: dict[str, Any] = dataclasses.field(default_factory=dict)


def test_what_is_written_to_the_status_of_a_class_must_be_in_it():
    def declare_for(cls):
        def declare(registry):
            external = kopf.external(cls, id='billing', conditions=True, registry=registry)
            for part in external.observe, external.create, external.delete:
                part(lambda **_: None)
            kopf.reconcile(cls, registry=registry, id='fn')(lambda **_: None)
        return declare

    with kinds.separated():
        @kopf.crd('example.com', 'v1', plural='tenants')
        class Lacking:
            status: LackingStatus | None = None

        @kopf.crd('example.com', 'v1', plural='others')
        class Complete:
            status: CompleteStatus | None = None

    assert check(declare_for(Complete))[1] == []
    assert check(declare_for(Lacking))[1] == [
        f"tenants.v1.example.com: external 'billing': the API does not store status.{name}, which "
        f"Kopf writes. Add it to the class of the status, for example: {name}: {code}"
        for name, code in [
            ('conditions', "kopf.Conditions = field(default_factory=list)"),
            ('billing', "dict[str, Any] = field(default_factory=dict)")]]


def test_a_fault_of_all_versions_of_a_kind_is_told_once():
    with kinds.separated():
        @kopf.crd('example.com', 'v1', plural='tenants')
        class Tenant:
            pass

        @kopf.crd('example.com', 'v2', plural='tenants')
        class OtherTenant:
            pass

    def declare(registry):
        for cls in (Tenant, OtherTenant):
            kopf.on.event(cls, registry=registry, id='fn')(lambda **_: None)

    [fault] = check(declare)[1]
    assert "different values of kind=" in fault
