"""What type checkers should refuse: exactly the lines that are marked."""
import dataclasses
from typing import Any

import kopf


@kopf.on.create('kopfexamples')  # refused
def without_the_rest(spec: kopf.Spec) -> None:
    pass


@kopf.on.create('kopfexamples')  # refused
def of_another_type(spec: int, **_: Any) -> None:
    pass


@kopf.on.update('kopfexamples')  # refused
async def views_are_no_dicts(body: dict[str, Any], **_: Any) -> None:
    pass


@kopf.on.event('pods')  # refused
def names_are_no_numbers(name: int, **_: Any) -> None:
    pass


@kopf.on.startup()  # refused
def settings_are_no_dict(settings: dict[str, Any], **_: Any) -> None:
    pass


@kopf.timer('kopfexamples', interval='10')  # refused
def tick(**_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples')  # refused
def reconcile(spec: dict[str, Any], **_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples', owns=[1])  # refused
def reconcile_numbers(**_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples', interval='10')  # refused
def reconcile_often(**_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples')  # refused
def children_are_no_list(children: list[Any], **_: Any) -> None:
    pass


@kopf.reconcile('kopfexamples')  # refused
def reasons_are_no_numbers(reason: int, **_: Any) -> None:
    pass


kopf.set_condition(kopf.Patch(), 'Ready', 'Yes', 'Reason')  # refused


@kopf.on.validate('kopfexamples')  # refused
def warnings_are_a_list(warnings: str, **_: Any) -> None:
    pass


@kopf.index('kopfexamples', errors='ignored')  # refused
def index(**_: Any) -> None:
    pass


@kopf.daemon('kopfexamples')  # refused
async def accompany(retry: str, **_: Any) -> None:
    pass


@kopf.on.login()
def log_in(**_: Any) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo('https://localhost')  # refused


kopf.TemporaryError("Not yet.", delay="soon")  # refused
kopf.run(clusterwide='yes')  # refused
kopf.Patch().spec = {}  # refused

kopf.crd('example.com', 'v1')  # refused
kopf.crd('example.com', 'v1', plural='databases', scope='cluster')  # refused
kopf.crd('example.com', 'v1', of=int, plural='databases')  # refused
kopf.Move('.spec.a')  # refused
kopf.on.convert('databases.example.com', 'v1')  # refused
kopf.Column('Port', '.spec.port', type='int')  # refused
kopf.Quantity(1.5)  # refused
kopf.on.create(1)  # refused


@dataclasses.dataclass
class Spec:
    size: int = 1


@kopf.crd('example.com', 'v1', plural='things')
class Thing:
    spec: Spec


@kopf.on.create(Thing)  # refused
def names_are_no_numbers_of_kinds_either(spec: Spec, name: int, **_: Any) -> None:
    pass


@kopf.on.create(Thing)
def fields_have_names(spec: Spec, **_: Any) -> None:
    print(spec.sise)  # refused
    print(Spec(sise=1))  # refused


@kopf.on.create(Thing, feild='spec.size')  # refused
def options_have_names(**_: Any) -> None:
    pass


@kopf.daemon(Thing)
async def values_are_read_only(spec: kopf.Live[Spec], **_: Any) -> None:
    spec.value = Spec()  # refused
