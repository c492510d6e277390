"""
The public face is that of the release: its names, parameters, defaults, settings, and commands.

More names and more optional parameters are fine, and so are parameters that accept more.
"""
import ast
import dataclasses
import enum
import importlib
import importlib.metadata
import inspect
import json
import pathlib
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import kopf

SURFACE = json.loads(pathlib.Path(__file__).with_name('surface.json').read_text())

# What is not there yet: remove from here what is added. The test fails if this list is not exact.
MISSING: set[str] = set()

# Where we differ intentionally.
DIFFERENT_SETTINGS = {
    'posting.loggers': True,
}

ABSENT = object()


def get_public(path: str) -> Any:
    module, _, name = path.rpartition('.')
    try:
        return getattr(importlib.import_module(module), name, ABSENT)
    except ModuleNotFoundError:
        return ABSENT


def iter_names() -> Iterator[tuple[str, Any]]:
    for module, names in SURFACE['names'].items():
        for name, facts in names.items():
            yield f'{module}.{name}', facts
    for name in SURFACE['package']['dunder_names']:
        yield f'kopf.{name}', 'constant'


def iter_present(sort: Callable[[Any], bool]) -> list[Any]:
    return [
        pytest.param(path, facts, id=path)
        for path, facts in iter_names() if path not in MISSING and sort(facts)
    ]


def iter_commands() -> Iterator[tuple[str, Any]]:
    for name, facts in SURFACE['cli'].items():
        yield f'kopf.cli {name}', facts


def get_command(path: str) -> click.Command:
    main = importlib.import_module('kopf.cli').main
    assert isinstance(main, click.Group)
    return main.commands[path.removeprefix('kopf.cli ')]


def is_present(path: str) -> bool:
    if path.startswith('kopf.cli '):
        try:
            get_command(path)
        except (KeyError, ModuleNotFoundError):
            return False
        return True
    return get_public(path) is not ABSENT


@dataclasses.dataclass(frozen=True)
class Param:
    name: str
    kind: Any
    has_default: bool
    default: str | None


def parse_signature(text: str) -> list[Param]:
    text = re.sub(r'<\w+>', '...', text[text.index('('):])
    args = ast.parse(f'def fn{text}: pass').body[0].args  # type: ignore[attr-defined]
    positional = [
        *((arg, inspect.Parameter.POSITIONAL_ONLY) for arg in args.posonlyargs),
        *((arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for arg in args.args),
    ]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    params = [
        (arg.arg, kind, default)
        for (arg, kind), default in zip(positional, defaults, strict=True)
    ]
    params += [
        (arg.arg, inspect.Parameter.KEYWORD_ONLY, default)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return [
        Param(
            name=name,
            kind=kind,
            has_default=default is not None,
            default=repr(default.value) if isinstance(default, ast.Constant) and
            default.value is not ... else None,
        )
        for name, kind, default in params
    ]


def assert_accepts(fn: Any, text: str, *, skip_self: bool = False) -> None:
    ours = list(inspect.signature(fn).parameters.values())[int(skip_self):]
    by_name = {param.name: param for param in ours}
    known = set()
    for index, theirs in enumerate(parse_signature(text)):
        if theirs.kind is inspect.Parameter.POSITIONAL_ONLY:
            param = ours[index]
            assert param.kind in {inspect.Parameter.POSITIONAL_ONLY,
                                  inspect.Parameter.POSITIONAL_OR_KEYWORD}
        else:
            assert theirs.name in by_name
            param = by_name[theirs.name]
            assert param.kind in {theirs.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD}
            if theirs.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                assert ours[index] is param
        known.add(param.name)
        assert param.default is not inspect.Parameter.empty or not theirs.has_default
        if theirs.default is not None:
            assert repr(param.default) == theirs.default
    assert all(
        param.default is not inspect.Parameter.empty or
        param.kind in {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        for param in ours if param.name not in known
    )


def is_function(facts: Any) -> bool:
    return isinstance(facts, str) and 'def ' in facts


def is_class(facts: Any) -> bool:
    return isinstance(facts, dict) and bool({'class', 'exception'} & set(facts))


def test_list_of_missing_names_is_exact():
    paths = [path for path, _ in [*iter_names(), *iter_commands()]]
    assert {path for path in paths if not is_present(path)} == MISSING


def test_all_public_names_are_declared_as_such():
    names = {path.removeprefix('kopf.') for path, _ in iter_names() if path.count('.') == 1}
    assert names - set(kopf.__all__) == {
        path.removeprefix('kopf.') for path in MISSING if re.fullmatch(r'kopf\.\w+', path)}


def test_all_declared_names_are_there():
    assert [name for name in kopf.__all__ if not hasattr(kopf, name)] == []


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match=r"module 'kopf' has no attribute 'unknown'"):
        kopf.unknown  # type: ignore[attr-defined]


def test_all_names_are_listed_by_dir():
    assert set(kopf.__all__) <= set(dir(kopf))


@pytest.mark.parametrize(('path', 'facts'), iter_present(is_function))
def test_functions_accept_what_they_accepted(path, facts):
    fn = get_public(path)
    assert inspect.iscoroutinefunction(fn) == facts.startswith('async ')
    assert_accepts(fn, facts.partition(' ->')[0])


@pytest.mark.parametrize(('path', 'facts'), [
    pytest.param(path, facts, id=path) for path, facts in SURFACE['decorators'].items()])
def test_decorators_accept_what_they_accepted(path, facts):
    assert_accepts(get_public(path), facts)


@pytest.mark.parametrize(('path', 'facts'), iter_present(
    lambda facts: is_class(facts) and 'init' in facts))
def test_classes_are_created_as_they_were(path, facts):
    if '*args' not in facts['init']:
        assert_accepts(get_public(path), facts['init'])


@pytest.mark.parametrize(('path', 'facts'), iter_present(is_class))
def test_classes_have_their_bases(path, facts):
    names = {cls.__name__ for cls in get_public(path).__mro__}
    assert set(facts['bases']) <= names


@pytest.mark.parametrize(('path', 'facts'), iter_present(
    lambda facts: is_class(facts) and 'members' in facts))
def test_classes_have_their_members(path, facts):
    cls = get_public(path)
    attrs = {*dir(cls)}.union(*(getattr(base, '__annotations__', ()) for base in cls.__mro__))
    if path == 'kopf.Patch':
        attrs |= set(dir(cls()))
    assert set(facts['members']) - attrs == set()
    for name, text in facts['members'].items():
        if text.startswith('(') and '*args' not in text:
            assert_accepts(getattr(cls, name), text, skip_self=True)


@pytest.mark.parametrize(('path', 'facts'), iter_present(
    lambda facts: isinstance(facts, dict) and facts.get('frozen')))
def test_frozen_classes_are_frozen(path, facts):
    assert get_public(path).__dataclass_params__.frozen


@pytest.mark.parametrize(('path', 'facts'), iter_present(
    lambda facts: isinstance(facts, dict) and 'enum' in facts))
def test_enums_have_their_values(path, facts):
    cls = get_public(path)
    assert issubclass(cls, enum.Enum)
    assert {key: repr(cls.__members__[key].value) for key in facts['members']} == facts['members']
    assert set(facts['bases']) <= {base.__name__ for base in cls.__mro__}


@pytest.mark.parametrize(('path', 'facts'), iter_present(lambda facts: facts == 'typeddict'))
def test_typed_dicts_are_typed_dicts(path, facts):
    assert typing.is_typeddict(get_public(path))


def iter_settings() -> Iterator[Any]:
    for section, facts in SURFACE['settings'].items():
        for name, fact in facts.items():
            if name != 'alias_of':
                yield pytest.param(section, name, fact, id=f'{section}.{name}')


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize(('section', 'name', 'fact'), list(iter_settings()))
def test_settings_have_their_defaults(section, name, fact):
    value = getattr(getattr(kopf.OperatorSettings(), section), name)
    default = fact.rpartition(' = ')[2]
    if f'{section}.{name}' in DIFFERENT_SETTINGS:
        assert value == DIFFERENT_SETTINGS[f'{section}.{name}']
    elif match := re.fullmatch(r'<(\w+)>', default):
        assert match.group(1) in {cls.__name__ for cls in type(value).__mro__}
    else:
        assert value == ast.literal_eval(default)


@pytest.mark.parametrize('alias, section', [
    (section, facts['alias_of'])
    for section, facts in SURFACE['settings'].items() if 'alias_of' in facts])
def test_renamed_settings_are_accessible_by_the_old_name(alias, section):
    settings = kopf.OperatorSettings()
    with pytest.deprecated_call():
        assert getattr(settings, alias) is getattr(settings, section)


def iter_options() -> Iterator[Any]:
    for path, facts in iter_commands():
        if path not in MISSING:
            for name, fact in facts['options'].items():
                yield pytest.param(path, name, fact, id=f'{path} {name}')


@pytest.mark.parametrize(('path', 'name', 'fact'), list(iter_options()))
def test_commands_have_their_options(path, name, fact):
    command = get_command(path)
    [option] = [
        param for param in command.params
        if isinstance(param, click.Option) and name in param.opts]
    prefix = f"KOPF_{path.removeprefix('kopf.cli ').upper()}"
    context = command.make_context(
        command.name, [], resilient_parsing=True, auto_envvar_prefix=prefix)
    default = context.params[option.name]
    assert set(fact['aliases']) <= set(option.opts)
    assert set(fact.get('negative', ())) <= set(option.secondary_opts)
    assert fact['envvar'] in option.list_variables(context)
    assert option.multiple == fact.get('multiple', False)
    assert option.required == fact.get('required', False)
    assert option.is_flag == fact.get('is_flag', False)
    default = default.name if isinstance(default, enum.Enum) else default or None
    assert str(default).lower() == str(ast.literal_eval(fact['default'])).lower()
    if 'choices' in fact:
        assert isinstance(option.type, click.Choice)
        assert {str(choice).lower() for choice in option.type.choices} >= set(fact['choices'])


@pytest.mark.parametrize('module', ['kopf', 'kopf.cli', 'kopf._kits.running'])
def test_import_is_without_what_is_rarely_used(module):
    rare = {
        'aiohttp', 'email', 'http.client', 'iso8601', 'kubernetes', 'opentelemetry',
        'kopf._kits.explaining'}
    code = f"import sys, {module}; print(*{rare} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, '-c', code], text=True).split() == []


@pytest.mark.parametrize(('module', 'count', 'libraries'), [
    ('kopf', 55, set()),
    ('kopf.cli', 173, {'click', 'yaml'}),
])
def test_import_takes_few_modules(module, count, libraries):
    code = f"import sys; old = {{*sys.modules}}; import {module}; print(*{{*sys.modules}} - old)"
    names = subprocess.check_output([sys.executable, '-c', code], text=True).split()
    assert len([name for name in names if name.split('.')[0] == 'kopf']) <= count
    installed = set(importlib.metadata.packages_distributions())
    assert {name.split('.')[0] for name in names} & installed - {'kopf'} == libraries


def test_extras_are_those_of_the_release():
    extras: dict[str, set[str]] = {}
    for requirement in importlib.metadata.requires('kopf') or []:
        name, _, marker = requirement.partition(';')
        extra = re.search(r'extra == .([\w-]+)', marker)
        extras.setdefault(extra[1] if extra else '', set()).add(re.split(r'[<>=~! ]', name)[0])
    assert set(SURFACE['package']['extras']) <= set(extras)
    assert extras['full-auth'] == {'kubernetes', 'pykube-ng'}
    assert extras['uvloop'] == {'uvloop'}
    assert not extras[''] & set.union(*(extras[extra] for extra in extras if extra))


@pytest.mark.parametrize('script', SURFACE['package']['console_scripts'])
def test_commands_are_installed(script):
    scripts = importlib.metadata.distribution('kopf').entry_points.select(group='console_scripts')
    assert {point.name: point.load() for point in scripts}[script] is kopf.cli.main


@pytest.mark.parametrize('path, public', [
    ('kopf._cogs.helpers.typedefs.Logger', kopf.Logger),
    ('kopf._cogs.structs.bodies.Body', kopf.Body),
    ('kopf._cogs.structs.bodies.Meta', kopf.Meta),
    ('kopf._cogs.structs.bodies.Spec', kopf.Spec),
    ('kopf._cogs.structs.diffs.Diff', kopf.Diff),
    ('kopf._core.actions.loggers.LogFormat', kopf.LogFormat),
    ('kopf._core.actions.loggers.configure', kopf.configure),
    ('kopf._core.intents.registries.SmartOperatorRegistry', kopf.OperatorRegistry),
])
def test_private_names_that_public_operators_use_are_there(path, public):
    found = kopf  # only this is imported
    for name in path.split('.')[1:]:
        found = getattr(found, name)
    assert found is public
