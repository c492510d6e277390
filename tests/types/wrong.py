"""What type checkers should refuse: exactly the lines that are marked."""
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
kopf.Column('Port', '.spec.port', type='int')  # refused
kopf.Quantity(1.5)  # refused
kopf.on.create(1)  # refused
