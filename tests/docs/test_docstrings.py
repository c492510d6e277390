"""The docstrings say all that an editor shows: what, how, with what, which errors, which page."""
import ast
import functools
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

import kopf
from kopf import lifecycles, on, testing
from tests.docs.snippets import DOCS

spec = importlib.util.spec_from_file_location('docstrings', DOCS.parent / 'scripts/docstrings.py')
docstrings = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = docstrings  # for its dataclass
spec.loader.exec_module(docstrings)

FUNCTIONS = [
    pytest.param(fn, id=f'{module.__name__}.{name}')
    for module in [kopf, on, testing, lifecycles]
    for name, fn in inspect.getmembers(module, inspect.isfunction)
    if fn.__module__.startswith('kopf') and not name.startswith('_')
    and (module is kopf or not hasattr(kopf, name) or getattr(kopf, name) is not fn)]

ERRORS = [kopf.TemporaryError, kopf.PermanentError, kopf.AdmissionError, kopf.RetryAfter,
          kopf.NotSent]

# The classes of which operators or tests make objects.
MADE = [
    kopf.AdmissionError, kopf.AiohttpSession, kopf.AnnotationsDiffBaseStorage,
    kopf.AnnotationsProgressStorage, kopf.CEL, kopf.Column, kopf.ConnectionInfo, kopf.ListMap,
    kopf.Move, kopf.MultiDiffBaseStorage, kopf.MultiProgressStorage, kopf.Patch, kopf.Pattern,
    kopf.Quantity, kopf.Rate, kopf.RetryAfter, kopf.Scale, kopf.SmartProgressStorage,
    kopf.StatusDiffBaseStorage, kopf.StatusProgressStorage, kopf.TemporaryError,
    kopf.WebhookAutoServer, kopf.WebhookAutoTunnel, kopf.WebhookDockerDesktopServer,
    kopf.WebhookK3dServer, kopf.WebhookMinikubeServer, kopf.WebhookNgrokTunnel,
    kopf.WebhookServer, kopf.Wire,
    testing.API, testing.Client, testing.FakeCloud, testing.Fault, testing.KopfRunner,
    testing.Operator, testing.Sandbox, testing.Session, testing.Upstream,
]

METHODS = [
    pytest.param(method, id=f'{cls.__name__}.{name}')
    for cls in [testing.Client, testing.SyncClient, testing.SyncOperator, testing.Session,
                testing.Time]
    for name, method in inspect.getmembers(cls, inspect.isfunction) if name[0] != '_']

# What an editor shows for the word at the end of the line, at least.
HOVERED = {
    "kopf.on.create": ["create: ", "timeout: float | None", "objects that this operator has never",
                       "@kopf.on.create('websites')", ":param retries: the maximum number",
                       ":raises TypeError:", '"Write handlers"'],
    "kopf.reconcile": ["owns: ", "Kopf creates, changes, and deletes", ":param prune:"],
    "kopf.on.validate": ["ignore_failures: ", ":param operations: the operations to handle"],
    "kopf.TemporaryError": ["delay: float | None = 60", "Default: 60."],
    "kopf.adopt": [":param strict:", '"Create owned resources"'],
    "kopf.testing.Client.get": ["get(", "CoroutineType[Any, Any, Obj]", ":param namespace:"],
    "kopf.testing.SyncClient.get": ["kind: Kind", "-> Obj", ":param namespace:"],
    "kopf.testing.SyncClient.wait": ["timeout: float = ", "kopf_client.wait("],
}


def test_what_docstrings_share_is_written_from_the_table():
    assert docstrings.write() == {}, "Run scripts/docstrings.py"


@pytest.mark.parametrize('what', [*FUNCTIONS, *MADE, *METHODS])
def test_docstrings_describe_exactly_the_parameters(what):
    _, fields = docstrings.split(inspect.getdoc(what))
    assert {key.partition(' ')[2] for key in fields if key.startswith('param ')} == {
        name for name in inspect.signature(what).parameters if name not in ('self', '_')}


@pytest.mark.parametrize('what', [*FUNCTIONS, *ERRORS])
def test_docstrings_begin_with_a_sentence_in_one_line(what):
    first, *others = inspect.getdoc(what).splitlines()
    assert first.endswith('.')
    assert not others or not others[0]


@pytest.mark.parametrize('what', [*FUNCTIONS, *ERRORS, testing.Client, testing.SyncClient])
def test_docstrings_have_an_example_and_name_a_page(what):
    head, _ = docstrings.split(inspect.getdoc(what))
    assert re.search(r'\bSee [^"]*"[^"]+"[^"]*("[^"]+" )?in the documentation\.', ' '.join(head))
    assert get_examples(what)


@pytest.mark.parametrize('what', [*FUNCTIONS, *ERRORS, *MADE, *METHODS])
def test_examples_are_valid_and_use_only_what_there_is(what):
    for example in get_examples(what):
        tree = compile(example, '', 'exec', ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith('kopf.'):
                functools.reduce(getattr, ast.unparse(node).split('.')[1:], kopf)


@pytest.mark.parametrize('what', [
    pytest.param(fn, id=fn.__name__) for fn in vars(on).values()
    if inspect.isfunction(fn) and fn.__module__ == 'kopf.on' and fn.__name__[0] != '_'])
def test_examples_of_decorators_are_accepted(what, monkeypatch):
    registry = kopf.OperatorRegistry()
    monkeypatch.setattr('kopf._core.intents.registries._default_registry', registry)
    for example in get_examples(what):
        exec(example, {'kopf': kopf})
    assert not registry.is_empty


def get_examples(what):
    head = '\n'.join(docstrings.split(inspect.getdoc(what))[0])
    return [textwrap.dedent(block) for block in re.findall(
        r'^ *::\n\n((?:    .*\n|\n)+)', head + '\n', re.MULTILINE)]


class LanguageServer:
    """The one of Pyright, as editors talk to it."""

    def __init__(self, folder):
        command = shutil.which('pyright-langserver', path=f'{sys.prefix}/bin')
        self.process = subprocess.Popen(
            [command, '--stdio'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)

    def send(self, **message):
        body = json.dumps({'jsonrpc': '2.0', **message}).encode()
        self.process.stdin.write(b'Content-Length: %d\r\n\r\n' % len(body) + body)
        self.process.stdin.flush()

    def receive(self):
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b'content-length:'):
                length = int(line.partition(b':')[2])
        assert length, "The language server has ended."
        return json.loads(self.process.stdout.read(length))

    def ask(self, method, **params):
        self.send(id=1, method=method, params=params)
        while True:
            message = self.receive()
            if 'method' in message and 'id' in message:  # it asks, too: for its settings
                items = message['params'].get('items', ())
                self.send(id=message['id'], result=[{'pythonPath': sys.executable} for _ in items])
            elif message.get('id') == 1:
                return message['result']


@pytest.fixture(scope='module')
def hover(tmp_path_factory):
    """Get what an editor shows for each of the names."""
    folder = tmp_path_factory.mktemp('editor')
    server = LanguageServer(folder)
    try:
        server.ask('initialize', processId=None, rootUri=folder.as_uri(), capabilities={
            'textDocument': {'hover': {'contentFormat': ['plaintext']}},
            'workspace': {'configuration': True},
        }, workspaceFolders=[{'uri': folder.as_uri(), 'name': 'operator'}])
        server.send(method='initialized', params={})
        lines = ['import kopf', 'import kopf.testing', *HOVERED]
        uri = (folder / 'handlers.py').as_uri()
        server.send(method='textDocument/didOpen', params={'textDocument': {
            'uri': uri, 'languageId': 'python', 'version': 1, 'text': '\n'.join(lines)}})
        yield lambda name: server.ask(
            'textDocument/hover', textDocument={'uri': uri},
            position={'line': lines.index(name), 'character': len(name) - 1})
    finally:
        server.process.stdin.close()
        server.process.kill()
        server.process.stdout.close()
        server.process.wait()


@pytest.mark.parametrize('name', HOVERED)
def test_editors_show_the_signature_and_the_docstring(hover, name):
    shown = hover(name)['contents']['value']
    assert [text for text in HOVERED[name] if text not in shown] == [], shown
