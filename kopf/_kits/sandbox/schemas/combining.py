from collections.abc import Callable, Iterator
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.schemas import nodes, paths
from kopf._kits.sandbox.schemas.findings import Check, Findings

Failures = list[list[statuses.Cause]]
"""What each of the combined schemas finds; it is empty for those that the value fits."""


def combine(schema: nodes.Schema, check_of: Callable[[nodes.Schema], Check]) -> Iterator[Check]:
    """Combinations of schemas: anyOf, oneOf, allOf, not."""
    for key, judge in _JUDGES.items():
        raws = schema.raw.get(key)
        if raws:
            yield _make([check_of(nodes.Schema({'nullable': True, **raw}))
                         for raw in (raws if isinstance(raws, list) else [raws])], judge)


def _make(checks: list[Check], judge: Callable[[Failures, str, Findings], None]) -> Check:
    def attempt(check: Check, value: Any, path: paths.Path) -> list[statuses.Cause]:
        findings = Findings()
        check(value, path, nodes.NOTHING, findings)
        return findings.by_schema

    def check_combination(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
        judge([attempt(check, value, path) for check in checks], paths.render(path), findings)

    return check_combination


def _judge_any(failures: Failures, place: str, findings: Findings) -> None:
    if all(failures):
        findings.add_unplaced(f'"{place}" must validate at least one schema (anyOf)')
        findings.by_schema.extend(failures[0])


def _judge_one(failures: Failures, place: str, findings: Findings) -> None:
    valid = failures.count([])
    if valid != 1:
        found = f"Found {valid} valid alternatives" if valid else "Found none valid"
        findings.add_unplaced(f'"{place}" must validate one and only one schema (oneOf). {found}')
    if not valid:
        findings.by_schema.extend(failures[0])


def _judge_all(failures: Failures, place: str, findings: Findings) -> None:
    if any(failures):
        findings.by_schema.extend(cause for failure in failures for cause in failure)
        findings.add_unplaced(f'"{place}" must validate all the schemas (allOf)')


def _judge_not(failures: Failures, place: str, findings: Findings) -> None:
    if not any(failures):
        findings.add_unplaced(f'"{place}" must not validate the schema (not)')


_JUDGES = {'anyOf': _judge_any, 'oneOf': _judge_one, 'allOf': _judge_all, 'not': _judge_not}
