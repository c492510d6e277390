"""
What the documentation takes from the code: the settings, the command line, the examples, what was
measured, links to the names and to the pages.

Names in ``code`` that begin with ``kopf.`` or ``settings.`` become links to what they name; where
there is nothing of that name, the build fails. Drawings are put into the pages as they are, so that
they take the colours of the theme.
"""
import ast
import html
import inspect
import json
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.preserve_defaults import DefaultValue
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective, SphinxRole

import charts
import docstrings
import kopf
import kopf.testing
from kopf import cli
from kopf._cogs.configs import configuration
from kopf._kits import helpscreens

HERE = pathlib.Path(__file__).parents[1]
NAME = re.compile(r'@?(kopf(?:\.[a-zA-Z]\w*)+|settings\.\w+\.\w+)(?:\(\.*\))?')
PLAIN = (
    'kopf.dev', 'kopf.zalando', 'kopf.yaml', 'kopf.objects', 'kopf.activities', 'kopf._',
    'kopf.handler.', 'kopf.reason', 'kopf.outcome', 'kopf.sequel')
"""What only looks like a name: API groups, loggers, the insides, attributes of spans."""


class NameRole(SphinxRole):
    """A name in single backquotes, as docstrings have them: a link if it is a public one."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        for name in (self.text, f'kopf.{self.text}'):
            if NAME.fullmatch(name) and exists(name):
                return [make_link(name, nodes.literal(self.text, self.text))], []
        return [nodes.literal(self.text, self.text)], []


class LinkNames(SphinxTransform):
    """Make links of the names in the code of texts."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for node in list(self.document.findall(nodes.literal)):
            text = node.astext()
            if text.startswith(PLAIN) or isinstance(node.parent, addnodes.pending_xref):
                continue
            found = NAME.fullmatch(text)
            if found and not any(isinstance(up, nodes.title) for up in ancestors(node)):
                node.replace_self(make_link(found[1], node.deepcopy()))


class LongDashes(SphinxTransform):
    """Make a dash of what is between a parameter and its description."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for node in list(self.document.findall(nodes.Text)):
            if node == ' -- ':
                node.parent.replace(node, nodes.Text(' – '))


class LinkPages(SphinxTransform):
    """Make links of the titles of pages, which docstrings quote."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        pages = {read_title(path): path.stem for path in HERE.glob('*.md')}
        for node in list(self.document.findall(nodes.Text)):
            parts = re.split(r'"([^"]+)"', str(node).replace('\n', ' '))
            if any(part in pages for part in parts[1::2]):
                node.parent.replace(node, [
                    nodes.Text(part) if number % 2 == 0
                    else self.link(part, pages[part]) if part in pages
                    else nodes.Text(f'"{part}"')
                    for number, part in enumerate(parts)])

    def link(self, title: str, page: str) -> nodes.Node:
        return addnodes.pending_xref(
            '', nodes.inline(title, title), refdomain='std', reftype='doc', reftarget=f'/{page}',
            refdoc=self.env.docname, refexplicit=True, refwarn=True)


class Settings(SphinxDirective):
    """A section of the settings, as it is in the code: names, types, defaults, descriptions."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        section = self.arguments[0]
        self.env.note_dependency(inspect.getsourcefile(configuration) or '')
        cls = type(getattr(kopf.OperatorSettings(), section))
        lines = [inspect.getdoc(cls) or '', '']
        for name, annotation, default, text in read_fields(cls):
            lines += [f'```{{py:attribute}} settings.{section}.{name}']
            lines += [f':type: {annotation}']
            lines += [f':value: {json.dumps(default)}'] if default else []
            lines += ['', text, '```', '']
        return self.parse_text_to_nodes('\n'.join(lines))


class CommandLine(SphinxDirective):
    """A command with its arguments and options, as it is in the code."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name, command = self.arguments[0], cli.main
        for part in name.split():
            command = command.commands[part]
        context = click.Context(command, info_name=f'kopf {name}')
        prefixed = click.Context(command, auto_envvar_prefix=f'KOPF_{name}'.replace(' ', '_'))
        self.env.note_dependency(inspect.getsourcefile(cli) or '')
        usage = ' '.join(command.collect_usage_pieces(context))
        lines = [inspect.cleandoc(command.help or ''), '',
                 '```text', f'kopf {name} {usage}', '```', '']
        for param in command.params:
            record = param.get_help_record(context)
            if record is not None and record[1]:  # arguments have no help, but a record
                lines += [f'`{record[0]}`', f': {" ".join(record[1].split())}', '']
                if isinstance(param, helpscreens.SectionOption):
                    lines += [f'  Environment: `{param.list_variables(prefixed)[0]}`.', '']
        return self.parse_text_to_nodes('\n'.join(lines))


class Examples(SphinxDirective):
    """All the examples in the order of their README: what they tell of themselves, their files."""

    def run(self) -> list[nodes.Node]:
        folder = HERE.parent / 'examples'
        listed = re.findall(r'^\| \[(.+?)\]', (folder / 'README.md').read_text(), re.MULTILINE)
        return [self.show(folder / name) for name in listed]

    def show(self, folder: pathlib.Path) -> nodes.section:
        title = folder.name.partition('-')[2].replace('-', ' ').capitalize()
        section = nodes.section('', nodes.title(title, title), ids=[f'example-{folder.name}'])
        paths = sorted(
            (path for path in folder.iterdir() if path.is_file()),
            key=lambda path: (path.suffix != '.py', path.name.startswith('test_'), path.name))
        for path in paths:
            self.env.note_dependency(str(path))
            text = path.read_text(encoding='utf-8')
            if path is paths[0] and path.suffix == '.py':
                section += self.parse_text_to_nodes(ast.get_docstring(ast.parse(text)) or '')
            language = path.suffix.removeprefix('.') or 'text'
            block = nodes.literal_block(text, text, language=language)
            caption = nodes.caption('', f'examples/{folder.name}/{path.name}')
            section += nodes.container(
                '', caption, block, literal_block=True, classes=['literal-block-wrapper'])
        return section


class Drawing(SphinxDirective):
    """A drawing of the folder ``drawings``; the content is its caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = HERE / 'drawings' / self.arguments[0]
        self.env.note_dependency(str(path))
        text = path.read_text(encoding='utf-8')
        return [make_figure(text, ' '.join(self.content))]


CHARTED = ('CPU', 'reaction p50', 'start-up', 'memory')
"""The metrics in the charts. In the table, there are more."""

COUNTS = ('PATCHes', 'seen', 'ticks per second')
"""What is counted in the benchmarks, and is the same for all."""


class Benchmarks(SphinxDirective):
    """What was measured: a chart beside another framework, or a table of everything."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = HERE.parent / 'benchmarks' / 'measured.json'
        self.env.note_dependency(str(path))
        measured = json.loads(path.read_text(encoding='utf-8'))
        versions = measured['versions']
        if self.arguments[0] == 'table':
            lines = [f"| work | metric | {' | '.join(f'× {name}' for name in versions.values())} |",
                     f"| --- | --- |{' --- |' * len(versions)}"]
            for row in measured['rows']:
                if row['metric'] in COUNTS:
                    continue
                ratios = [charts.show(row[name]) if name in row else '–' for name in versions]
                lines += [f"| {row['work']} | {row['metric']} | {' | '.join(ratios)} |"]
            return self.parse_text_to_nodes('\n'.join(lines))
        name = self.arguments[0]
        caption = f"Costs relative to {versions[name]}. Less is better."
        chart = charts.draw(caption, [
            (f"{row['work']}: {row['metric']}", row[name])
            for row in measured['rows'] if name in row and row['metric'] in CHARTED])
        return [make_figure(chart, f"{caption} {measured['when']}, {measured['where']}.")]


def read_title(path: pathlib.Path) -> str:
    """The title of a page, without what is in parentheses at its end."""
    title = re.search(r'^# (.*?)(?: \([^()]*\))?$', path.read_text(encoding='utf-8'), re.MULTILINE)
    return title[1] if title else ''


def read_fields(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """The name, the type, the default, the description of each setting of a section."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if not name.startswith('_'):
                assert isinstance(following, ast.Expr), f"{name} is not described."
                text = inspect.cleandoc(ast.literal_eval(following.value))
                yield name, ast.unparse(node.annotation), show_default(node.value), text
        elif isinstance(node, ast.FunctionDef) and any(
                ast.unparse(item) == 'property' for item in node.decorator_list):
            assert node.returns is not None
            yield node.name, ast.unparse(node.returns), '', ast.get_docstring(node) or ''


def show_default(node: ast.expr | None) -> str:
    return '' if node is None or 'default_factory' in ast.unparse(node) else ast.unparse(node)


def exists(name: str) -> bool:
    """Whether it is a public name."""
    module, *path = name.removesuffix('()').split('.')
    found: Any = kopf if module == 'kopf' else None
    for part in path:
        found = getattr(found, part, None)
    return found is not None


def hide_markers(app: Sphinx, fn: Any, bound_method: bool) -> None:
    """Show those defaults as dots that only mark absent arguments."""
    signature = getattr(fn, '__signature__', None)
    if isinstance(signature, inspect.Signature):
        fn.__signature__ = signature.replace(parameters=[
            param.replace(default=DefaultValue('...')) if '_UNSET' in repr(param.default) else param
            for param in signature.parameters.values()])


def hide_shared(
        app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out what `kopf.on` describes for all decorators: the page has it once."""
    head, fields = docstrings.split('\n'.join(lines))
    own = {key: field for key, field in fields.items()
           if ' '.join(' '.join(field).split()) != f':{key}: {docstrings.SHARED.get(key)}'}
    if what == 'function' and len(own) < len(fields):
        lines[:] = [*head, '', *(line for field in own.values() for line in field), '',
                    '`kopf.on` describes the other parameters and errors.', '']


def make_link(name: str, content: nodes.Node) -> addnodes.pending_xref:
    return addnodes.pending_xref(
        '', content, refdomain='py', reftype='obj', reftarget=name, refexplicit=True)


def make_figure(svg: str, caption: str) -> nodes.Node:
    return nodes.raw('', (
        f'<figure class="drawing">{svg}'
        f'<figcaption>{html.escape(caption)}</figcaption></figure>'), format='html')


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role('kopf-name', NameRole())
    app.connect('autodoc-process-docstring', hide_shared)
    app.connect('autodoc-before-process-signature', hide_markers, priority=900)  # after autodoc's
    app.add_transform(LinkNames)
    app.add_transform(LinkPages)
    app.add_transform(LongDashes)
    app.add_directive('settings', Settings)
    app.add_directive('command', CommandLine)
    app.add_directive('examples', Examples)
    app.add_directive('drawing', Drawing)
    app.add_directive('benchmarks', Benchmarks)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
