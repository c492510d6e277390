"""
The options of the command line: their sections in the help, their variables, their values as
arguments.
"""
import functools
import os
from collections.abc import Callable, Container, Iterator
from typing import Any, ParamSpec, TypeVar

import click
from click.core import ParameterSource

P = ParamSpec('P')
R = TypeVar('R')

ORDER = (
    'Deployment', 'Definitions', 'Rights', 'Plan', 'Scope', 'Handlers', 'Logging', 'Peering',
    'Leadership', 'Sharding', 'Health', 'Sandbox', 'Shadow', 'Options')
"""The order of the sections. The last section is for options without a section."""

GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
"""How the user gives values; all others are defaults."""


class SectionOption(click.Option):
    """
    An option in a section of the help, which an environment variable can set.

    The variable is named after the option, e.g. ``KOPF_RUN_LIVENESS`` after ``--liveness``. If
    Kopf 1 has named the variable otherwise, that other name also works.
    """

    def __init__(self, *args: Any, section: str = ORDER[-1], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def list_variables(self, ctx: click.Context) -> list[str]:
        name = max(self.opts, key=len).removeprefix('--').replace('-', '_')
        prefix = ctx.auto_envvar_prefix
        return [] if prefix is None else [f'{prefix}_{each}'.upper() for each in (name, self.name)]

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        values = (os.environ.get(name) for name in self.list_variables(ctx))
        return next(filter(None, values), None)

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if variables := self.list_variables(ctx):
            extra['envvars'] = (variables[0],)
        if 'default' in extra:
            extra.pop('required', None)  # an option with a default can be omitted
        return extra


class PageCommand(click.Command):
    """A command that names its page in the documentation at the end of its help."""

    def __init__(self, *args: Any, page: str = 'cli', **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page = page

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(f"Documentation: {find_page(self.page)}")


class SectionCommand(PageCommand):
    """A command that shows its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ORDER}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections[getattr(param, 'section', ORDER[-1])].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class PageGroup(PageCommand, click.Group):
    """A group of commands that names its page in the same way."""

    command_class: type[click.Command] | None = SectionCommand


def find_page(name: str) -> str:
    """Find a page of the documentation: its URL, if the package knows where its pages are."""
    import importlib.metadata  # only for the help: it takes milliseconds
    try:
        urls = importlib.metadata.metadata('kopf').get_all('Project-URL') or ()
    except importlib.metadata.PackageNotFoundError:
        urls = ()
    index = dict(url.split(', ', 1) for url in urls).get('Documentation', 'docs/index.md')
    folder, _, start = index.rpartition('/')
    return f"{folder}/{name}{'.md' if start.endswith('.md') else '.html'}"


def option(*names: str, **kwargs: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add an option to a command, as `click.option` does, in a section of the help."""
    return functools.partial(click.option, cls=SectionOption)(*names, **kwargs)


def combine(*options: Callable[[Any], Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Combine the decorators that add options or arguments: the help shows them in this order."""
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        for add in reversed(options):
            fn = add(fn)
        return fn
    return decorate


def list_set(ctx: click.Context, *, names: Container[str]) -> list[str]:
    """List the variables that set these options of the command."""
    return [
        variable for param in ctx.command.params
        if isinstance(param, SectionOption) and param.name in names
        and ctx.get_parameter_source(param.name) == ParameterSource.ENVIRONMENT
        for variable in param.list_variables(ctx) if os.environ.get(variable)]


def hand_over(ctx: click.Context, *, without: Container[str]) -> list[str]:
    """
    Restore the arguments of the command for child processes, without some of the options.

    The child processes get the other values from the environment. So the variables of the options
    that are left out are removed from the environment.
    """
    for param in ctx.command.params:
        if isinstance(param, SectionOption) and param.name in without:
            for name in param.list_variables(ctx):
                os.environ.pop(name, None)
    return restore(ctx, without=without, sources=[ParameterSource.COMMANDLINE])


def restore(
        ctx: click.Context,
        *,
        without: Container[str],
        sources: Container[ParameterSource | None] = GIVEN,
) -> list[str]:
    """Restore the arguments that the user has given in these ways, except for some of them."""
    return [
        arg for param in ctx.command.params
        if param.name and param.name not in without
        and ctx.get_parameter_source(param.name) in sources
        for arg in _iter_args(param, ctx.params[param.name])
    ]


def _iter_args(param: click.Parameter, value: Any) -> Iterator[str]:
    if isinstance(param, click.Argument):
        yield from map(str, value)
    elif isinstance(param, click.Option) and param.is_flag:
        yield max(param.opts if value else param.secondary_opts, key=len)
    else:
        name = max(param.opts, key=len)
        for each in value if param.multiple else [value]:
            yield f'{name}={each}'
