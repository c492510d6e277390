"""
Rendering: a plan as text for people, as Markdown for a comment, and as JSON.
"""
import collections
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from kopf._cogs.structs import texts
from kopf._kits.planning.plans import (
    ExternalCall,
    Field,
    Item,
    Plan,
    Refused,
    group_by,
    group_failures,
    name_some,
    show,
)

_T = TypeVar('_T')

MAX_ALIKE = 3
"""How many objects are shown whose same fields change."""

MAX_VALUE = 120
"""How many characters of a value are shown."""

VERBS = {'create': 'created', 'change': 'changed', 'delete': 'deleted',
         'replace': 'deleted and created again'}

SIGNS = {'create': '+', 'update': '~', 'delete': '-'}

STYLES: Mapping[str, Any] = {
    '-': {'fg': 'red'}, '+': {'fg': 'green'}, '!': {'fg': 'yellow'}, '#': {'bold': True}}
"""The styles of lines by their first characters, which diffs in Markdown also have."""


def render(plan: Plan, form: str, *, is_colored: bool = False) -> str:
    """Render as ``'text'``, ``'markdown'``, or ``'json'``. Only text can be coloured."""
    match form:
        case 'json':
            return json.dumps(dataclasses.asdict(plan), indent=2)
        case 'markdown':
            return _render_markdown(plan)
    lines = [*map(texts.make_entry, _iter_details(plan)), "# Summary", *_iter_summary(plan)]
    return '\n'.join(
        click.style(line, **STYLES.get(line[0], {})) if is_colored else line for line in lines)


def _render_markdown(plan: Plan) -> str:
    """Render for a comment: the summary is visible, and the rest can be unfolded."""
    summary = [f"- {line.strip()}" for line in _iter_summary(plan)]
    details = [texts.make_entry(line.replace('```', "'''")) for line in _iter_details(plan)]
    if details:
        details = ['', '<details><summary>Details</summary>', '', '```diff', *details, '```', '',
                   '</details>']
    return '\n'.join(['### What the operator would do', '', *summary, *details])


def _iter_details(plan: Plan) -> Iterator[str]:
    for title, items in {
            "Would be deleted": plan.deletions,
            "Would restart pods": [item for item in plan.restarts if not item.is_deletion],
            "Would be changed": [
                item for item in plan.items if item.action == 'change' and not item.restarts],
            "Would be created": [item for item in plan.items if item.action == 'create'],
            "Only the other version would do this": plan.only_old}.items():
        yield from _iter_section(title, items)
    for title, calls in {
            "Would be called in external systems": plan.calls,
            "Only the other version would call this in external systems": plan.only_old_calls,
            }.items():
        if calls:
            yield f"# {title}: {len(calls)}"
        for group in group_by(calls, lambda call: (call.external, call.verb, tuple(call.fields))):
            yield from _iter_alike(group, _iter_call, f"calls of {group[0].external}",
                                   is_whole=group[0].verb == 'delete')
    if plan.refused:
        yield "# Would be refused by the API"
    for refused in group_by(plan.refused, lambda each: (
            each.verb, each.place.resource, each.message.replace(each.place.name, ''))):
        yield from _iter_alike(refused, _iter_refused, refused[0].place.resource, is_whole=False)
    for title, lines in {
            "Failing handlers, so that the plan for these objects is incomplete": [
                f"{handler} for {places}: {message}"
                for handler, places, message in group_failures(plan.failures)],
            "Unknown": plan.unknown,
            "Errors": plan.problems}.items():
        if lines:
            yield f"# {title}"
        yield from (f"! {line}" for line in lines)


def _iter_section(title: str, items: Sequence[Item]) -> Iterator[str]:
    if not items:
        return
    yield f"# {title}: {len(items)}"
    for group in group_by(items, lambda item: (
            item.place.resource, item.action, tuple(field.path for field in item.fields))):
        yield from _iter_alike(
            group, _iter_item, group[0].place.resource, is_whole=group[0].is_deletion)


def _iter_alike(
        group: Sequence[_T], render: Callable[[_T], Iterator[str]], noun: str, *, is_whole: bool,
) -> Iterator[str]:
    for item in group if is_whole else group[:MAX_ALIKE]:  # each deletion is named
        yield from render(item)
    if not is_whole and len(group) > MAX_ALIKE:
        yield f"  … and {len(group) - MAX_ALIKE} more {noun} like these"


def _iter_call(call: ExternalCall) -> Iterator[str]:
    what = ' '.join(filter(None, (call.verb, call.key)))
    fields = f" ({', '.join(call.fields)})" if call.fields else ''
    yield f"{SIGNS[call.verb]} {call.external}: {what}{fields}, for {call.place}"


def _iter_refused(refused: Refused) -> Iterator[str]:
    handlers = refused.handlers[::-1]  # the latest one is most likely the culprit
    yield f"! {refused.verb} {refused.place}{_by(handlers)}: {refused.message}"


def _iter_item(item: Item) -> Iterator[str]:
    notes = [VERBS[item.action]]
    if item.restarts:
        notes.append(f"restarts {_count(item.restarts, 'pod')}")
    if item.owner:
        notes.append(f"by the garbage collector, with {item.owner}")
    if item.is_waiting:
        notes.append("when others have removed their finalizers")
    sign = '-' if item.is_deletion else '!' if item.restarts else '+' if (
        item.action == 'create') else '~'
    yield f"{sign} {item.place}: {', '.join(notes)}{'' if item.owner else _by(item.handlers)}"
    if item.action == 'delete':
        return
    for field in item.fields:
        yield from _iter_field(field)
    yield from (f"{name[0]}     finalizer {name[1:]}" for name in item.finalizers)
    if status := ', '.join(filter(None, map(_get_name, item.status))):
        yield f"      and in the status: {status}"


def _get_name(field: Field) -> str:
    return field.path.removeprefix('status.') if field.path != 'status' else ', '.join(
        field.new if isinstance(field.new, Mapping) else ['all'])


def _iter_field(field: Field) -> Iterator[str]:
    if field.old is not None:
        yield f"-     {field.path}: {show(field.old, size=MAX_VALUE)}"
    if field.new is not None:
        yield f"+     {field.path}: {show(field.new, size=MAX_VALUE)}"


def _by(handlers: Sequence[str]) -> str:
    return f", by {name_some(handlers) or 'Kopf'}"


def _iter_summary(plan: Plan) -> Iterator[str]:
    if plan.is_empty:
        yield "  Nothing would change."
    for resource, counts in plan.summarize().items():
        yield f"  {resource}: " + ', '.join(
            f"{number} {VERBS[action]}" for action, number in counts.items())
    pods: collections.Counter[str] = collections.Counter()
    for item in plan.restarts:
        pods[item.place.resource] += item.restarts
    for resource, number in pods.items():
        objects = sum(item.place.resource == resource for item in plan.restarts)
        yield f"  restarts {_count(number, 'pod')} in {objects} {resource}"
    if plan.calls:
        calls = collections.Counter(call.verb for call in plan.calls)
        yield f"  calls of external systems: {_list(calls)}"
    for text, found in (("refused by the API", plan.refused), ("failing handlers", plan.failures),
                        ("errors", plan.problems)):
        if found:
            yield f"  {text}: {len(found)}"
    yield f"  requests of the operator: {_list(plan.requests)}"
    yield f"  requests to the cluster: {_list(plan.upstream)}"


def _list(counts: Mapping[str, int]) -> str:
    return ', '.join(f"{number} {verb}" for verb, number in sorted(counts.items())) or "none"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
