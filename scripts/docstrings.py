"""
Writes what docstrings share: each parameter is described once, and an editor shows it everywhere.

``scripts/docstrings.py`` writes the docstrings in place. The first lines, the examples, and the
descriptions that only one function has are written by hand, in the code: they remain. A test
verifies that nothing is to be written.
"""
import ast
import dataclasses
import inspect
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).parents[1]
WIDTH = 100

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Texts = Mapping[str, str]
"""The descriptions: by ``param name`` and ``raises Error``, in the order of the reference."""

ON = 'kopf/on.py'
EVENTS = 'kopf/_kits/events.py'
CLIENTS = 'kopf/_kits/testing/clients.py'
WEBHOOKS = 'kopf/_kits/webhooks/servers.py'

GROUPS: Mapping[str, Texts] = {
    '**The resource.** Name it once: by position, or by one keyword. See "Select resources" in the '
    'documentation.': {
        'arg1': "a name (plural, singular, short, or the kind), such as ``'pods'`` or "
                "``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a "
                "function that gets a `kopf.Resource` and returns whether the resource is "
                "selected. If more arguments follow: the group, or the group and the version, as "
                "in ``'apps', 'v1', 'deployments'`` and ``'apps/v1', 'deployments'``.",
        'arg2': "the version or the name, after the group.",
        'arg3': "the name, after the group and the version.",
        'group': "the API group; ``''`` is the core API. Default: any group.",
        'version': "the version of the group. Default: the preferred version.",
        'kind': "the kind of the resource, such as ``'Pod'``.",
        'plural': "the plural name of the resource, such as ``'pods'``.",
        'singular': "the singular name of the resource, such as ``'pod'``.",
        'shortcut': "a short name of the resource, such as ``'po'``.",
        'category': "a category: all its resources are selected, e.g. those of ``'all'``.",
    },
    '**The handler.** See "Write handlers" in the documentation.': {
        'id': "a string that identifies the handler in the log and in the stored progress. Keep it "
              "stable as long as there are objects. Default: the qualified name of the function, "
              "and the field, if there is one.",
        'param': "any value. The handler gets it as the argument ``param``. Default: `None`.",
        'registry': "the `kopf.OperatorRegistry` that gets the handler. Default: the default "
                    "registry.",
    },
    '**Errors and retries.** See "Handle errors and retries" in the documentation.': {
        'errors': "a `kopf.ErrorsMode`: what exceptions mean, other than `kopf.TemporaryError` and "
                  "`kopf.PermanentError`. Default: ``TEMPORARY``, a retry.",
        'timeout': "the time limit in seconds for all attempts together, delays included. Default: "
                   "no limit.",
        'retries': "the maximum number of attempts, including the first attempt. Default: no "
                   "limit.",
        'backoff': "the delay in seconds before a retry after such an exception. Default: "
                   "``settings.execution.default_backoff`` (60 seconds).",
    },
    '**Filters.** An object must satisfy all given filters. A criterion is a value, '
    '`kopf.PRESENT`, `kopf.ABSENT`, or a function that gets the value as its positional argument '
    'and the arguments of the handler as keyword arguments. See "Filter objects and changes" in '
    'the documentation.': {
        'labels': "a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, "
                  "or a function of the value. Default: no filter.",
        'annotations': "a dict of names of annotations to such criteria. Default: no filter.",
        'when': "a function that gets the arguments of the handler as keyword arguments, and "
                "returns whether to call the handler. Default: no filter.",
        'field': "a path, as a dotted string (``'spec.field'``), or as a list or a tuple of keys. "
                 "The field must be present if no criterion says otherwise. Default: the whole "
                 "object.",
        'value': "a criterion for the field. It requires ``field``. Default: any value.",
        'old': "a criterion for the field before the change. It requires ``field``, and excludes "
               "``value``. Default: any value, or none.",
        'new': "a criterion for the field after the change. It requires ``field``, and excludes "
               "``value``. Default: any value, or none.",
    },
}

SHARED: Texts = {
    **{f'param {name}': text for texts in GROUPS.values() for name, text in texts.items()},
    'raises TypeError': "for no resource or several; for an option of a wrong type; for ``value``, "
                        "``old``, or ``new`` without ``field``; for a generator, or a function "
                        "without ``**_``.",
    'raises ValueError': "for `None` as a criterion for a label or an annotation; for a field that "
                         "is neither a string nor strings; for a callable without a name, if there "
                         "is no ``id``.",
}
ACTIVITY: Texts = {
    **SHARED,
    'raises TypeError': "for an option of a wrong type; for a generator, or a function without "
                        "``**_``.",
    'raises ValueError': "for a callable without a name, if there is no ``id``.",
}
CHANGED: Texts = {
    **SHARED,
    'param value': "a criterion that either the old or the new value of the field must satisfy. It "
                   "excludes ``old`` and ``new``. Default: any value.",
}
RUNNING: Texts = {
    **SHARED,
    'param initial_delay': "the delay in seconds before the first call for an object; or a "
                           "function that gets the arguments of the handler as keyword arguments, "
                           "and returns seconds. Default: no delay.",
}
ADMISSION: Texts = {
    **SHARED,
    'param operations': "the operations to handle: a collection of ``'CREATE'``, ``'UPDATE'``, "
                        "``'DELETE'``, ``'CONNECT'``. Default: all operations.",
    'param operation': "one operation. Deprecated: use ``operations``.",
    'param subresource': "the subresource to handle, e.g. ``'status'``. ``'*'`` means the object "
                         "itself and all subresources. Default: only the object itself.",
    'param persistent': "whether the webhook remains in the cluster after the shutdown of the "
                        "operator, so that nobody can change these objects meanwhile. Default: no.",
    'param side_effects': "whether the handler changes something outside of the object, except in "
                          "dry runs. Default: no.",
    'param ignore_failures': "whether the API server accepts the change, unmodified, if it cannot "
                             "reach the operator. Default: no, the API server refuses the change.",
    'raises TypeError': "for wrong resources, options, filters, or functions; for a string as the "
                        "``operations``.",
    'raises ValueError': "for empty or unknown ``operations``; for `None` as a criterion for a "
                         "label or an annotation.",
}
NESTED: Texts = {
    **SHARED,
    'param id': "the id of the sub-handler, after the id of the parent and a slash. Default: the "
                "name of the function.",
    'raises LookupError': "outside of a handler of changes.",
    'raises TypeError': "for an option of a wrong type; for ``value``, ``old``, or ``new`` without "
                        "``field``.",
}
REGISTERED: Texts = {
    **NESTED,
    'raises TypeError': "for an option of a wrong type.",
    'raises ValueError': "for `None` as a criterion for a label or an annotation; for a callable "
                         "without a name, if there is no ``id``.",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """A function or class that takes descriptions from a table, or from another one."""

    path: str
    name: str
    source: Texts | str
    own: frozenset[str] = frozenset()
    """What it describes itself, although it is in the table."""


def on(source: Texts, *names: str) -> Iterator[Rule]:
    """Make the rules for decorators: ``'name'``, or ``'name: what it describes itself'``."""
    for name, _, own in (name.partition(':') for name in names):
        yield Rule(ON, name, source, frozenset(f'param {each}' for each in own.split()))


RULES = [
    *on(ACTIVITY, 'startup', 'cleanup', 'login', 'probe'),
    *on(ADMISSION, 'validate'),
    *on({**ADMISSION, 'param operations': f"{ADMISSION['param operations'][:-1]} but deletions."},
        'mutate'),
    *on(SHARED, 'resume', 'create', 'delete', 'index: id errors', 'event'),
    *on({**SHARED, 'raises ValueError': (
        f"{SHARED['raises ValueError'][:-1]}; for a negative ``interval``.")},
        'reconcile: backoff'),
    *on(CHANGED, 'update: field', 'field: field'),
    *on(RUNNING, 'daemon', 'timer'),
    *on(NESTED, 'subhandler'),
    *on(REGISTERED, 'register'),
    Rule('kopf/_kits/external/declaring.py', 'external', SHARED, frozenset({
        'param id', 'param timeout', 'param backoff', 'raises TypeError', 'raises ValueError'})),
    Rule('kopf/_kits/running.py', 'spawn_tasks', 'operator', frozenset({
        'raises Exception', 'raises LoginError'})),
    Rule('kopf/_kits/running.py', 'run', 'operator'),
    Rule(EVENTS, 'info', 'event'),
    Rule(EVENTS, 'warn', 'event'),
    Rule(EVENTS, 'exception', 'event', frozenset({'param reason', 'param message'})),
    *(Rule(WEBHOOKS, f'Webhook{name}Server', 'WebhookServer', frozenset({'param host'}))
      for name in ('K3d', 'Minikube', 'DockerDesktop')),
    Rule('kopf/_kits/webhooks/detection.py', 'WebhookAutoServer', f'{WEBHOOKS}:WebhookServer',
         frozenset({'param host'})),
    *(Rule(CLIENTS, f'SyncClient.{name}', f'Client.{name}')
      for name in ('request', 'get', 'list', 'create', 'patch', 'delete', 'wait', 'wait_gone',
                   'load')),
]


def main() -> int:
    for path, text in write().items():
        (ROOT / path).write_text(text, encoding='utf-8')
        print(f"Written: {path}")
    return 0


def write() -> dict[str, str]:
    """Make the texts of the files that are to change."""
    texts: dict[str, str] = {}
    for path in dict.fromkeys(rule.path for rule in RULES):
        was = text = (ROOT / path).read_text(encoding='utf-8')
        if path == ON:
            text = describe_module(text)
        for rule in RULES:
            if rule.path == path:
                text = apply(rule, text)
        if text != was:
            texts[path] = text
    return texts


def describe_module(text: str) -> str:
    """Put the table into the docstring of the module, between what is written by hand."""
    blocks = []
    for intro, texts in GROUPS.items():
        blocks.append(wrap(intro) + [''] + [
            line for name, each in texts.items()
            for line in wrap(f'* ``{name}``: {each}', hanging=2)] + [''])
    lines = [line for block in blocks for line in block]
    start, end = text.index('**The resource.**'), text.index('Wrong arguments raise')
    return text[:start] + '\n'.join(lines) + '\n' + text[end:]


def apply(rule: Rule, text: str) -> str:
    """Put the shared descriptions into the docstring of one function."""
    node = find(text, rule.name)
    head, fields = split(ast.get_docstring(node) or '')
    params = [f'param {name}' for name in list_parameters(node)]
    if isinstance(rule.source, str):
        source: Texts = {
            key: ' '.join(' '.join(lines).split()).partition(': ')[2]
            for key, lines in split(read_docstring(rule.source, text))[1].items()}
        params = params or [key for key in {**fields, **source} if key.startswith('param ')]
        first = frozenset(fields) - frozenset(source)
    else:
        source, first = rule.source, (frozenset(params) - frozenset(SHARED)) | rule.own
    shared = {key for key in source if key not in rule.own}
    made: dict[str, list[str]] = {}
    for key in [*(key for key in params if key in first),
                *(key for key in params if key not in first),
                *(key for key in (*fields, *source) if key.startswith('returns')),
                *(key for key in (*source, *fields) if key.startswith('raises'))]:
        if key in shared:
            made[key] = wrap(f':{key}: {source[key]}', hanging=4, narrower=node.col_offset + 4)
        elif key in fields:
            made[key] = fields[key]
    body = [*head, '', *(line for lines in made.values() for line in lines)]
    indent = ' ' * (node.col_offset + 4)
    doc = node.body[0]
    assert isinstance(doc, ast.Expr), f"{rule.name} has no docstring."
    lines = text.splitlines(keepends=True)
    lines[doc.lineno - 1:doc.end_lineno] = [
        f'{indent}"""\n', *(f'{indent}{line}'.rstrip() + '\n' for line in body), f'{indent}"""\n']
    return ''.join(lines)


def read_docstring(source: str, text: str) -> str:
    """Read the docstring of a function or class of this file, or of another: ``path:name``."""
    path, _, name = source.rpartition(':')
    return ast.get_docstring(find((ROOT / path).read_text(encoding='utf-8') if path else text, name)
                             ) or ''


def find(text: str, name: str) -> Node:
    """Find a function by its name; of several ones, the last: the others are overloads."""
    found: ast.Module | Node = ast.parse(text)
    for part in name.split('.'):
        found = [node for node in found.body
                 if isinstance(node, Node) and node.name == part][-1]
    assert isinstance(found, Node)
    return found


def list_parameters(node: Node) -> list[str]:
    """List the parameters of a function; none of a class, or if it has those of another one."""
    if isinstance(node, ast.ClassDef):
        return []
    args = node.args
    listed = [arg.arg for arg in [
        *args.posonlyargs, *args.args, *filter(None, [args.vararg]), *args.kwonlyargs]
        if arg.arg != 'self']
    return [*listed, args.kwarg.arg] if listed and args.kwarg is not None else listed


def split(doc: str) -> tuple[list[str], dict[str, list[str]]]:
    """Split a docstring into the prose, and its fields: parameters, results, errors."""
    head: list[str] = []
    fields: dict[str, list[str]] = {}
    lines: list[str] = head
    for line in inspect.cleandoc(doc).splitlines():
        field = re.match(r':(param \w+|returns|raises \w+):', line)
        if field:
            lines = fields.setdefault(field[1], [])
        lines.append(line)
    while head and not head[-1]:
        head.pop()
    return head, fields


def wrap(text: str, *, hanging: int = 0, narrower: int = 0) -> list[str]:
    return textwrap.wrap(
        text, WIDTH - narrower, subsequent_indent=' ' * hanging, break_long_words=False,
        break_on_hyphens=False)


if __name__ == '__main__':
    sys.exit(main())
