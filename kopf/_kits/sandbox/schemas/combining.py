from collections.abc import Callable, Iterator
from typing import Any

from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.schemas import nodes, paths
from kopf._kits.sandbox.schemas.findings import Check, Findings


def combine(schema: nodes.Schema, check_of: Callable[[nodes.Schema], Check]) -> Iterator[Check]:
    """Combinations of schemas: anyOf, oneOf, allOf, not."""
    def children(key: str) -> list[Check]:
        return [check_of(nodes.Schema({'nullable': True, **raw}))
                for raw in schema.raw.get(key) or ()]

    def attempt(check: Check, value: Any, path: paths.Path) -> list[statuses.Cause]:
        findings = Findings()
        check(value, path, nodes.NOTHING, findings)
        return findings.by_schema

    if any_of := children('anyOf'):
        def check_any(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
            failures = [attempt(check, value, path) for check in any_of]
            if all(failures):
                place = paths.render(path)
                findings.add_unplaced(f'"{place}" must validate at least one schema (anyOf)')
                findings.by_schema.extend(failures[0])
        yield check_any

    if one_of := children('oneOf'):
        def check_one(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
            failures = [attempt(check, value, path) for check in one_of]
            valid = sum(1 for failure in failures if not failure)
            if valid == 1:
                return
            found = f"Found {valid} valid alternatives" if valid else "Found none valid"
            findings.add_unplaced(
                f'"{paths.render(path)}" must validate one and only one schema (oneOf). {found}')
            if not valid:
                findings.by_schema.extend(failures[0])
        yield check_one

    if all_of := children('allOf'):
        def check_all(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
            failures = [attempt(check, value, path) for check in all_of]
            if any(failures):
                findings.by_schema.extend(cause for failure in failures for cause in failure)
                findings.add_unplaced(
                    f'"{paths.render(path)}" must validate all the schemas (allOf)')
        yield check_all

    if raw_not := schema.raw.get('not'):
        check_child = check_of(nodes.Schema({'nullable': True, **raw_not}))

        def check_not(value: Any, path: paths.Path, old: Any, findings: Findings) -> None:
            if not attempt(check_child, value, path):
                findings.add_unplaced(f'"{paths.render(path)}" must not validate the schema (not)')
        yield check_not
