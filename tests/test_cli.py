import asyncio
import email.message
import gc
import os
import pathlib
import re
import subprocess
import sys
import types
import uuid

import click
import pytest
import yaml
from click.testing import CliRunner

import kopf
from kopf import cli
from kopf._cogs.structs import credentials
from kopf._core.actions import loggers
from kopf._core.engines import activities
from kopf._core.intents import registries
from kopf._kits import running
from tests.docs.snippets import DOCS

COMMANDS = [
    'init', 'run', 'check', 'crd', 'rbac', 'manifests', 'explain', 'sandbox', 'freeze', 'resume',
    'pause', 'unpause', 'release', 'migrate', 'completion']

HANDLER = '''
import kopf

@kopf.on.event('kopfexamples')
def fn(**_):
    pass
'''


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    for key in os.environ:
        if key.startswith('KOPF_'):
            monkeypatch.delenv(key)
    monkeypatch.setattr(loggers, 'configure', lambda **_: None)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    registry = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    kopf.on.event('kopfexamples')(lambda **_: None)
    yield
    kopf.set_default_registry(registry)


@pytest.fixture()
def invoke(monkeypatch):
    """Run the command line in this process, all but the operator itself; returns click's result."""
    monkeypatch.setattr(running, 'run', lambda **_: None)
    return lambda *args, **kwargs: CliRunner().invoke(cli.main, args, **kwargs)


@pytest.fixture()
def run(invoke, monkeypatch):
    """Run ``kopf run``, and return the arguments with which the operator was run."""
    def run(*args, **kwargs):
        captured = {}
        monkeypatch.setattr(running, 'run', lambda **options: captured.update(options))
        monkeypatch.setattr(cli, '_make_fast_loop', lambda: None)
        result = invoke('run', *args, **kwargs)
        assert result.exit_code == 0, result.output
        return captured

    threshold = gc.get_threshold()
    yield run
    gc.set_threshold(*threshold)


@pytest.fixture()
def script(tmp_path):
    """Write a script of handlers; returns its path."""
    def write(text, name='handlers.py'):
        path = tmp_path / name
        path.write_text(text)
        return str(path)
    return write


def execute(*args, **env):
    """Run the command line as a process; returns its code, stdout, and stderr."""
    process = subprocess.run(
        [sys.executable, '-m', 'kopf', *args],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=30)
    return process.returncode, process.stdout, process.stderr


def test_files_can_set_another_threshold_of_the_garbage_collection(script):
    code, _, stderr = execute(
        'run', script("import gc\nraise ValueError(f'It is {gc.get_threshold()[0]}.')"))
    assert code == 1
    assert f'It is {cli.COLLECTION_THRESHOLD}.' in stderr


@pytest.mark.parametrize('command', COMMANDS)
def test_the_help_names_all_the_commands(invoke, command):
    result = invoke('--help')
    assert result.exit_code == 0
    assert command in result.output


@pytest.mark.parametrize('command', COMMANDS)
def test_the_help_of_commands_explains_every_option(invoke, command):
    assert invoke(command, '--help').exit_code == 0
    options = [
        param for param in cli.main.commands[command].params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_version_is_told(invoke):
    assert invoke('--version').output.startswith('kopf, version ')


def test_no_command_shows_the_help(invoke):
    assert 'Usage: ' in invoke().output


def test_defaults_are_left_to_the_operator(run):
    options = run('--all-namespaces')
    assert isinstance(options.pop('settings'), kopf.OperatorSettings)
    assert options == {
        'standalone': None, 'namespaces': (), 'clusterwide': True, 'priority': None,
        'peering_name': None, 'liveness_endpoint': None, 'metrics_endpoint': None,
        'registry': None, 'stop_flag': None, 'ready_flag': None,
        'vault': None, 'loop': None, '_shadow': None, '_adjust': None,
    }


@pytest.mark.parametrize('args, name, value', [
    (['-A'], 'clusterwide', True),
    (['--all-namespaces'], 'clusterwide', True),
    (['-n', 'a', '--namespace', 'b*'], 'namespaces', ('a', 'b*')),
    (['-n', 'a'], 'clusterwide', False),
    (['--standalone'], 'standalone', True),
    (['--dev'], 'priority', 666),
    (['--priority', '123'], 'priority', 123),
    (['-p', '123'], 'priority', 123),
    (['-p', '5', '--dev'], 'priority', 5),
    (['--peering', 'x'], 'peering_name', 'x'),
    (['-P', 'x'], 'peering_name', 'x'),
    (['--liveness', 'http://:80/'], 'liveness_endpoint', 'http://:80/'),
    (['-L', 'http://:80/'], 'liveness_endpoint', 'http://:80/'),
    (['--metrics', 'http://:80/'], 'metrics_endpoint', 'http://:80/'),
])
def test_options_reach_the_operator(run, args, name, value):
    assert run(*args)[name] == value


@pytest.mark.parametrize(('args', 'name'), [
    ([], None),
    (['--leader-elect'], 'kopf-operator'),
    (['--leader-elect=my-lease'], 'my-lease'),
])
def test_lease_is_named_by_the_option_and_never_by_the_next_argument(run, script, args, name):
    kwargs = run('-A', *args, script(HANDLER))
    settings = kwargs['settings'] if kwargs['settings'] is not None else kopf.OperatorSettings()
    assert settings.leadership.name == name


def test_state_of_the_operator_is_served_where_the_option_says(run):
    settings = run('-A', '--debug-endpoint', 'http://:80/')['settings']
    assert settings.debugging.endpoint == 'http://:80/'


@pytest.mark.parametrize('args, env, enabled', [
    (['--tracing'], {}, True),
    ([], {'KOPF_RUN_TRACING': 'true'}, True),
    (['--leader-elect'], {}, False),
])
def test_spans_are_made_if_the_option_says_so(run, args, env, enabled):
    assert run('-A', *args, env=env)['settings'].tracing.enabled == enabled


def test_lease_is_named_by_the_environment(run):
    settings = run(env={'KOPF_RUN_LEADER_ELECT': 'my-lease'})['settings']
    assert settings.leadership.name == 'my-lease'


@pytest.mark.parametrize('variable, value, name, expected', [
    ('KOPF_RUN_CLUSTERWIDE', 'true', 'clusterwide', True),
    ('KOPF_RUN_NAMESPACES', 'a b*', 'namespaces', ('a', 'b*')),
    ('KOPF_RUN_STANDALONE', '1', 'standalone', True),
    ('KOPF_RUN_DEV', 'yes', 'priority', 666),
    ('KOPF_RUN_PRIORITY', '123', 'priority', 123),
    ('KOPF_RUN_PEERING', 'x', 'peering_name', 'x'),
    ('KOPF_RUN_LIVENESS_ENDPOINT', 'http://:80/', 'liveness_endpoint', 'http://:80/'),
    ('KOPF_RUN_METRICS_ENDPOINT', 'http://:80/', 'metrics_endpoint', 'http://:80/'),
])
def test_options_are_taken_from_the_environment(run, variable, value, name, expected):
    assert run(env={variable: value})[name] == expected


def list_commands(group=cli.main, *names):
    for command in group.commands.values():
        yield (*names, command.name), command
        if isinstance(command, click.Group):
            yield from list_commands(command, *names, command.name)


def list_options():
    for names, command in list_commands():
        for option in command.params:
            if isinstance(option, click.Option):
                yield pytest.param(names, command, option, id=' '.join([*names, option.opts[-1]]))


@pytest.mark.parametrize('names', [pytest.param(names, id=' '.join(names))
                                   for names, _ in list_commands()])
def test_the_help_is_for_people(invoke, names):
    text = invoke(*names, '--help').output
    assert not re.search(r' (TEXT|INTEGER|FLOAT|PATH|FILENAME)\b', text)
    [page] = re.findall(r'^Documentation: .+/([\w-]+)\.\w+$', text, re.MULTILINE)
    assert (DOCS / f'{page}.md').exists()


def test_the_help_has_the_address_of_the_page_if_it_is_known(invoke, monkeypatch):
    known = email.message.Message()
    known['Project-URL'] = 'Documentation, https://example.com/kopf/index.html'
    monkeypatch.setattr('importlib.metadata.metadata', lambda _: known)
    output = invoke('run', '--help').output
    assert output.endswith('\n\nDocumentation: https://example.com/kopf/running.html\n')


@pytest.mark.parametrize(('names', 'command', 'option'), list(list_options()))
def test_variable_named_after_an_option_has_the_effect_of_the_option(
        invoke, names, command, option, monkeypatch, tmp_path):
    def parse(*args):
        prefix = '_'.join(['KOPF', *names]).upper()
        return command.make_context(
            command.name, [*args, *needed], auto_envvar_prefix=prefix).params

    (tmp_path / 'file').touch()
    name = max(option.opts, key=len)
    needed = {
        'explain': ['x', 'y'], 'release': ['x'], 'migrate': ['x'], 'pause': ['x'],
        'unpause': ['x'], 'adopt': ['x', 'y', 'z'], 'retry': ['x', 'y', 'z'],
    }.get(command.name, [])
    needed += [f'{max(other.opts, key=len)}=5' for other in command.params
               if isinstance(other, click.Option) and other.required and other is not option]
    value = 'true' if option.is_flag else {
        click.Path: str(tmp_path / 'file'), cli.WritablePath: str(tmp_path / 'file'),
        click.Choice: option.type.choices[0] if isinstance(option.type, click.Choice) else None,
        click.FloatRange: '0.5',
    }.get(type(option.type), '7' if 'int' in option.type.name else 'http://:80/')
    value = {'horizon': '7m', 'fail_on': 'deletions'}.get(option.name, value)
    expected = parse(name if option.is_flag else f'{name}={value}')
    variable = '_'.join(['KOPF', *names, name.removeprefix('--').replace('-', '_')]).upper()
    if not option.hidden:
        assert f'env var: {variable}' in ' '.join(invoke(*names, '--help').output.split())
    monkeypatch.setenv(variable, value)
    found = parse()
    assert found == expected
    assert found[option.name]


@pytest.mark.parametrize(('variable', 'separator', 'name'), [
    ('KOPF_RUN_NAMESPACE', ' ', 'namespaces'), ('KOPF_RUN_MODULE', ' ', 'modules'),
    ('KOPF_RUN_FAULT', ' ', 'fault'), ('KOPF_RUN_LOAD', ':', 'load')])
def test_variables_have_several_values(variable, separator, name, monkeypatch):
    monkeypatch.setenv(variable, separator.join([__file__, __file__]))
    params = cli.run.make_context('run', [], auto_envvar_prefix='KOPF_RUN').params
    assert [str(value) for value in params[name]] == [__file__, __file__]


@pytest.mark.parametrize('args', [
    ['run', '-A', '--peering='], ['run', '-n', ''], ['run', '-n', 'a', '--namespace', ' '],
    ['run', '-n', ','], ['run', '-n', ',default'], ['run', '-n', 'a*, ,!ab'], ['run', '-n', 'a*,!'],
    ['run', '-A', '--leader-elect='], ['freeze', '-A', '--lifetime=5', '-P', ''],
    ['explain', '-n', '', 'kopfexample', 'obj'], ['unpause', '-n', '', 'kopfexamples', 'obj']])
def test_names_of_unset_variables_are_refused(invoke, args):
    result = invoke(*args)
    assert result.exit_code == 2
    assert 'a name is empty. Is a variable unset?' in result.output


@pytest.mark.parametrize(('value', 'name'), [
    ('true', 'kopf-operator'), ('1', 'kopf-operator'), ('false', None), ('0', None), ('x', 'x')])
def test_booleans_are_no_names_of_leases(run, value, name):
    for kwargs in [run(f'--leader-elect={value}'), run(env={'KOPF_RUN_LEADER_ELECT': value})]:
        assert (kwargs['settings'] or kopf.OperatorSettings()).leadership.name == name


def test_the_whole_cluster_is_served_with_a_warning_if_nothing_is_said(run, caplog):
    assert run()['clusterwide'] is True
    assert 'Neither --namespace nor --all-namespaces is given' in caplog.text


def test_namespaces_exclude_the_whole_cluster(invoke):
    result = invoke('run', '-A', '-n', 'x')
    assert result.exit_code == 2
    assert "Use either --namespace or --all-namespaces, but not both.\n" in result.output


@pytest.mark.parametrize('variable', ['KOPF_RUN_ALL_NAMESPACES', 'KOPF_RUN_CLUSTERWIDE'])
def test_the_variable_that_excludes_an_option_is_named(invoke, variable):
    result = invoke('run', '-n', 'x', env={variable: 'true'})
    assert result.exit_code == 2
    assert f"but not both. These variables are set: {variable}.\n" in result.output


def test_controls_reach_the_operator(run):
    controls = cli.CLIControls(
        stop_flag=object(), registry=kopf.get_default_registry(), settings=object())
    options = run('-A', obj=controls)
    assert options['stop_flag'] is controls.stop_flag
    assert options['registry'] is controls.registry
    assert options['settings'] is controls.settings


@pytest.mark.parametrize('log_format', ['json', 'JSON'])
def test_the_log_is_configured_by_the_options(run, monkeypatch, log_format):
    configured = {}
    monkeypatch.setattr(loggers, 'configure', lambda **kwargs: configured.update(kwargs))
    run('-A', '-v', '--log-format', log_format, '--log-refkey', 'x', '--no-log-prefix')
    assert configured == {
        'debug': False, 'verbose': True, 'quiet': False,
        'log_format': loggers.LogFormat.JSON, 'log_refkey': 'x', 'log_prefix': False,
        'color': False,
    }


@pytest.mark.parametrize('args, env, terminal, colored', [
    ([], {}, True, True),
    ([], {}, False, False),
    ([], {'NO_COLOR': '1'}, True, False),
    ([], {'NO_COLOR': ''}, True, True),
    ([], {'TERM': 'dumb'}, True, False),
    (['--color'], {'NO_COLOR': '1'}, False, True),
    (['--no-color'], {}, True, False),
])
def test_colours_are_for_terminals_unless_said(
        run, monkeypatch, args, env, terminal, colored):
    configured = {}
    monkeypatch.setattr(loggers, 'configure', lambda **kwargs: configured.update(kwargs))
    monkeypatch.setattr(cli, '_is_terminal', lambda: terminal)
    run('-A', *args, env={'NO_COLOR': '', 'TERM': 'xterm', **env})
    assert configured['color'] is colored


@pytest.mark.parametrize('args, log_prefix', [
    ([], None), (['--log-prefix'], True), (['--no-log-prefix'], False),
])
def test_the_prefix_of_the_log_depends_on_the_format_if_not_said(
        run, monkeypatch, args, log_prefix):
    configured = {}
    monkeypatch.setattr(loggers, 'configure', lambda **kwargs: configured.update(kwargs))
    run('-A', *args)
    assert configured['log_prefix'] is log_prefix


def test_the_fast_loop_is_used_if_it_is_installed(invoke, monkeypatch):
    loop = asyncio.new_event_loop()
    uvloop = types.ModuleType('uvloop')
    uvloop.new_event_loop = lambda: loop
    captured = {}
    monkeypatch.setattr(running, 'run', lambda **options: captured.update(options))
    monkeypatch.setitem(sys.modules, 'uvloop', uvloop)
    assert invoke('run', '-A').exit_code == 0
    assert captured['loop'] is loop and loop.is_closed()
    monkeypatch.setitem(sys.modules, 'uvloop', None)
    assert invoke('run', '-A').exit_code == 0
    assert captured['loop'] is None


def test_files_and_modules_are_loaded_with_the_options_at_hand(run, script, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, 'seen', seen, raising=False)
    text = 'import click, sys; sys.seen.append(click.get_current_context().params["priority"])'
    one, two = script(text, 'one.py'), script(text, 'two.py')
    script(text, 'module_of_test.py')
    script(text, 'other_of_test.py')
    monkeypatch.syspath_prepend(pathlib.Path(one).parent)
    run('-A', '-p', '123', one, two, '-m', 'module_of_test', '--module', 'other_of_test')
    assert seen == [123] * 4


@pytest.mark.parametrize('error', [
    credentials.LoginError("no way"), activities.ActivityError("no way", {}),
    registries.RegistryError("no way"),
])
def test_failures_to_start_are_said_in_one_line(invoke, monkeypatch, error):
    def fail(**_):
        raise error

    monkeypatch.setattr(running, 'run', fail)
    result = invoke('run', '-A')
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "Error: no way"


@pytest.mark.parametrize('args', [
    ['freeze', '--lifetime', '10'],
    ['freeze', '--peering', 'x'],
    ['freeze', '--peering', 'x', '--lifetime', '0'],
    ['freeze', '--peering', 'x', '--lifetime', '-600'],
    ['resume'],
])
def test_freezing_needs_to_know_whom_and_for_how_long(invoke, args):
    assert invoke(*args).exit_code == 2


@pytest.mark.parametrize('args, message', [
    (['release', '-A'], "Missing argument 'KIND...'"),
    (['release', 'x'], "Add --namespace or --all-namespaces."),
    (['migrate'], "Missing argument 'KIND'"),
    (['pause', 'x'], "Name the objects, or select them by --selector."),
    (['pause', 'x.example.com/y'], "Separate the kind and the name: x.example.com y"),
    (['pause', 'x', 'y', '-l', 'a=b'],
     "Name the objects, or select them by --selector, but not both."),
    (['unpause', 'x', 'y', '-n', 'a', '-A'],
     "Use either --namespace or --all-namespaces, but not both."),
])
def test_objects_to_write_must_be_named(invoke, args, message):
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in result.output


def test_absent_files_are_said_in_one_line_by_the_process():
    code, out, err = execute('run', '-A', 'absent.py')
    assert code == 1
    assert out == ''
    assert err == "Error: Cannot load absent.py: there is no such file.\n"


def test_errors_in_files_show_only_the_frames_of_the_user(script):
    path = script('def fn():\n    1/0\nfn()\n')
    code, _, err = execute('run', '-A', path)
    assert code == 1
    assert err.splitlines()[0] == (
        f"Error: Cannot load {path}: ZeroDivisionError: division by zero")
    assert err.count('  File "') == err.count(f'  File "{path}"') == 2


CLIENT_AT_THE_IMPORT = """
import kopf, kubernetes
kubernetes.config.load_kube_config()
api = kubernetes.client.CoreV1Api()

@kopf.on.create('', 'v1', 'configmaps')
def fn(**_): pass
"""
LOADING_COMMANDS = [
    ['check'], ['rbac'], ['crd', '--peering'],
    ['manifests', '-A', '--image', 'example.com/image:1']]


@pytest.mark.parametrize('command', LOADING_COMMANDS)
def test_files_that_need_a_kubeconfig_are_loaded_without_a_cluster(script, tmp_path, command):
    path = script(CLIENT_AT_THE_IMPORT)
    code, out, err = execute(*command, path, KUBECONFIG='', HOME=str(tmp_path))
    assert (code, err) == (0, '')
    assert out


def test_files_find_the_kubeconfig_that_there_is(script, tmp_path):
    path = script('import os\nraise ValueError(os.environ["KUBECONFIG"])')
    tmp_path.joinpath('config').write_text('{}')
    code, _, err = execute('check', path, KUBECONFIG=str(tmp_path / 'config'))
    assert code == 1
    assert f"ValueError: {tmp_path / 'config'}" in err


@pytest.mark.parametrize('args', [['check'], ['run', '--sandbox', '-A'], ['plan']])
def test_requests_during_the_import_are_refused_with_an_advice(script, tmp_path, args):
    path = script(CLIENT_AT_THE_IMPORT + 'api.list_namespace(_request_timeout=5)')
    code, _, err = execute(*args, path, KUBECONFIG='', HOME=str(tmp_path))
    assert code == 1
    assert f"Error: Cannot load {path}: MaxRetryError: " in err
    assert err.splitlines()[-1] == (
        "There is no API yet when a file is imported, so requests are refused. Send them in a "
        "startup handler: @kopf.on.startup()")


@pytest.mark.parametrize('command', [*LOADING_COMMANDS, ['run', '-A'], ['plan']])
def test_exiting_while_loading_is_an_error(script, command):
    path = script(HANDLER + 'raise SystemExit(0)')
    code, _, err = execute(*command, path)
    assert code == 1
    assert err.startswith(f"Error: Cannot load {path}: it has called sys.exit(0).")


def test_absence_of_credentials_ends_the_process(script, tmp_path):
    code, _, err = execute('run', '-A', script(HANDLER), KUBECONFIG='', HOME=str(tmp_path))
    assert code == 1
    assert err.splitlines()[-1].startswith("Error: ")
    assert 'Traceback' not in err


@pytest.mark.parametrize('url', ['https://host:1/', 'host:8080', 'http://host:99999/'])
def test_liveness_endpoints_are_checked_at_once(invoke, script, url):
    result = invoke('run', '-A', '--liveness', url, script(''))
    assert result.exit_code == 2
    assert "Invalid value for '-L' / '--liveness'" in result.output
    assert "Use http://host:port/path." in result.output


def test_something_has_to_be_run(invoke):
    kopf.set_default_registry(kopf.OperatorRegistry())
    result = invoke('run', '-A')
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == (
        "Error: No file or module with handlers is given. For example: kopf run -A handlers.py")


def test_files_without_handlers_are_refused(invoke, script):
    kopf.set_default_registry(kopf.OperatorRegistry())
    path = script('import kopf')
    result = invoke('run', '-A', path)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: There are no handlers in {path}. Decorate functions as handlers, "
        f"for example: @kopf.on.create('kopfexamples')")


def test_not_every_file_needs_handlers(run, script):
    kopf.set_default_registry(kopf.OperatorRegistry())
    assert run('-A', script('import kopf', 'one.py'), script(HANDLER, 'two.py'))


@pytest.mark.parametrize('text, expected', [
    ("@kopf.on.create\ndef fn(**_): pass", "@kopf.on.create('kopfexamples')"),
    ("@kopf.on.startup\ndef fn(**_): pass", "with parentheses: @kopf.on.startup()"),
    ("@kopf.on.create('a')\ndef fn(spec): pass", "Add **_: def fn(spec, **_)"),
    ("@kopf.on.create('v1', 'b.c', 'a')\ndef fn(**_): pass", "did you mean 'b.c', 'v1', 'a'?"),
], ids=['parentheses', 'parentheses-of-activities', 'kwargs', 'order'])
def test_mistakes_at_decorators_are_said_with_what_to_write(invoke, script, text, expected):
    result = invoke('run', '-A', script(f'import kopf\n\n{text}\n'))
    assert result.exit_code == 1
    assert result.output.startswith('Error: Cannot load ')
    assert expected in result.output


@pytest.mark.parametrize('args, standalone', [
    (['--sandbox'], True), (['--sandbox', '--peering=x'], None), ([], None)])
def test_operators_on_a_sandbox_are_alone(run, args, standalone):
    assert run('-A', *args)['standalone'] is standalone


def test_operators_are_checked_without_a_cluster(invoke, script):
    kopf.set_default_registry(kopf.OperatorRegistry())
    result = invoke('check', script(HANDLER))
    assert result.exit_code == 0
    assert result.output == "kopfexamples: event fn\n"


CONVERSION = '''
import kopf
@kopf.on.convert('things.example.com', '{}', '{}')
def fn(obj):
    pass
'''


def test_conversions_are_checked_without_a_cluster(invoke, script):
    kopf.set_default_registry(kopf.OperatorRegistry())
    both = CONVERSION.format('v1', 'v2') + CONVERSION.format('v2', 'v1')
    result = invoke('check', script(both))
    assert result.exit_code == 0
    assert result.output == "things.example.com: conversions between v1, v2\n"


@pytest.mark.parametrize('text, message', [
    (CONVERSION.format('v1', 'v2'), "no conversion of v2 to v1, only back"),
    ("1/0", "ZeroDivisionError"),
    ("import kopf", "There are no handlers in "),
    (HANDLER + HANDLER.replace('import kopf', ''), "two handlers have the id 'fn'"),
])
def test_faults_of_operators_are_found_without_a_cluster(invoke, script, text, message):
    kopf.set_default_registry(kopf.OperatorRegistry())
    result = invoke('check', script(text))
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize('args, message', [
    ([], "Missing argument '[PATHS]... KIND NAME'"),
    (['kex'], "Name the kind and the object."),
    (['handlers.py', 'kex'], "Name the kind and the object."),
    (['kex', 'obj', 'handlers.py'], "The files precede the kind and the name of the object."),
])
def test_explanations_need_the_kind_and_the_name(invoke, args, message):
    result = invoke('explain', *args)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_shells_can_complete_commands(invoke, shell):
    result = invoke('completion', shell)
    assert result.exit_code == 0
    assert f'_KOPF_COMPLETE={shell}_complete' in result.output


@pytest.mark.parametrize(('words', 'expected'), [
    ('kopf ru', 'plain,run\n'),
    ('kopf run --log-format j', 'plain,json\n'),
    ('kopf run hand', 'file,hand\n'),
    ('kopf explain hand', 'file,hand\n'),
    ('kopf handlers.py ru', 'plain,run\n')])
def test_completions_are_given_by_the_command(words, expected):
    env = {'_KOPF_COMPLETE': 'bash_complete', 'COMP_WORDS': words,
           'COMP_CWORD': str(words.count(' '))}
    done = subprocess.run(
        [sys.executable, '-c', 'from kopf.cli import main; main(prog_name="kopf")'],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=30)
    assert done.stdout == expected


EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'


@pytest.fixture()
def rbac(script):
    """Run ``kopf rbac`` in this process, for one handler; returns click's result."""
    def rbac(*args, crd='crd.yaml'):
        kopf.set_default_registry(kopf.OperatorRegistry())
        return CliRunner().invoke(cli.main, ['rbac', f'--crd={EXAMPLES / crd}', *args, path])

    path = script(HANDLER.replace('event', 'create'), f'{uuid.uuid4().hex}.py')
    return rbac


def get_rules(result):
    assert result.exit_code == 0, result.output
    return {(role['metadata'].get('namespace'), resource): rule['verbs']
            for role in yaml.safe_load_all(result.stdout) if role
            for rule in role['rules'] for resource in rule['resources']}


def test_roles_are_those_of_the_options(rbac):
    args = ['-n', 'a', '--standalone', '--leader-elect', '--log-format=json', '--dev',
            '--liveness=http://:80/', '--reload']
    assert get_rules(rbac(*args)) == {
        (None, 'customresourcedefinitions'): ['list', 'watch'],
        (None, 'leases'): ['get', 'watch', 'update'],
        ('a', 'events'): ['create'],
        ('a', 'kopfexamples'): ['list', 'watch', 'patch'],
    }


@pytest.mark.parametrize('args, resource, verbs', [
    (['-A', '--peering=x'], 'clusterkopfpeerings', ['list', 'watch', 'patch']),
    (['-A'], 'clusterkopfpeerings', ['list', 'watch', 'patch']),
    (['-A', '--shards=5'], 'leases', ['get', 'list', 'create', 'update', 'delete']),
    (['-A', '--processes=5'], 'leases', ['get', 'list', 'create', 'update', 'delete']),
])
def test_roles_depend_on_how_operators_coordinate(rbac, args, resource, verbs):
    assert get_rules(rbac(*args))[None, resource] == verbs


def test_one_process_needs_no_leases(rbac):
    assert (None, 'leases') not in get_rules(rbac('-A', '--processes=1'))


def test_unknown_resources_are_errors(rbac):
    result = rbac('-A', crd='obj.yaml')
    assert result.exit_code == 1
    assert result.output.startswith("Error: Handler 'fn': there is no resource kopfexamples")


@pytest.mark.parametrize('granted, expected, lines', [
    ('create', 0, ["The roles are the least ones."]),
    ('patch', 3, ["Missing: create events", "Not needed: patch events"]),
])
def test_differences_of_roles_have_an_exit_code_of_their_own(
        tmp_path, script, granted, expected, lines):
    args = ['rbac', '-A', '--crd', str(EXAMPLES / 'crd.yaml'), script(HANDLER)]
    code, text, _ = execute(*args)
    assert code == 0
    path = tmp_path / 'roles.yaml'
    path.write_text(text.replace('create', granted))
    code, text, _ = execute(*args, f'--verify={path}')
    assert (code, text.splitlines()) == (expected, lines)


@pytest.mark.skipif(not pathlib.Path('/dev/full').exists(), reason="It is a device of Linux.")
def test_output_that_cannot_be_written_is_an_error_in_a_line():
    with open('/dev/full', 'w') as full:
        done = subprocess.run(
            [sys.executable, '-m', 'kopf', '--version'], stdout=full, stderr=subprocess.PIPE,
            check=False)
    assert done.returncode == 1
    assert done.stderr == b"Error: Nothing can be written: No space left on device.\n"


@pytest.mark.skipif(sys.platform == 'win32', reason="There are no such limits.")
def test_run_may_open_as_many_files_as_the_system_allows(tmp_path):
    path = tmp_path / 'handlers.py'
    path.write_text("import resource\nprint(*resource.getrlimit(resource.RLIMIT_NOFILE))\n")
    done = subprocess.run(
        ['bash', '-c', 'ulimit -n 200 && ulimit -Sn 100 && exec "$0" -m kopf run "$1"',
         sys.executable, str(path)],
        capture_output=True, text=True, check=False)
    assert done.stdout == '200 200\n', done.stderr
