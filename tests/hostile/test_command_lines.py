"""
Command lines: whatever is typed, it is run, or there is an error without a traceback.
"""
import os
import sys

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import kopf
from kopf import cli
from kopf._core.actions import loggers
from kopf._kits import reloading, running, supervising

COMMANDS = ['run', 'check', 'explain', 'freeze', 'resume', 'completion', 'version', '']
OPTIONS = [
    '-A', '--all-namespaces', '-n', '--namespace', '-m', '--module', '--standalone', '--dev',
    '--priority', '-P', '--peering', '--liveness', '--metrics', '--debug-endpoint', '-v', '-q',
    '--verbose', '--log-format', '--log-prefix', '--log-refkey', '--id', '--lifetime', '--message',
    '--processes', '--shards', '--leader', '--reload', '--json', '--startup', '--help', '--',
    '--version', '-', '-x', '--port', '--load', '--state']
VALUES = [
    'handlers.py', '/nowhere/handlers.py', '.', '..', '/', '/dev/null', 'no.such.module', 'json',
    '0', '-1', '5', '99999999999999999999', 'nan', 'http://:0/x', 'http://[', 'tcp://x', '%s', '{}',
    'plain', 'full', '\ud800', 'x' * 2000, '', ' ', 'name=value', '*', '..json', 'é', 'bash']

words = st.sampled_from(OPTIONS) | st.sampled_from(VALUES) | st.builds(
    '{}={}'.format, st.sampled_from(OPTIONS), st.sampled_from(VALUES)) | st.text(
        st.characters(exclude_characters='\x00', codec='utf-8'), max_size=8)
lines = st.builds(lambda command, rest: [command, *rest],
                  st.sampled_from(COMMANDS), st.lists(words, max_size=6)) | st.lists(words)


@pytest.fixture(scope='module')
def harmless(tmp_path_factory):
    """Run nothing: neither operators, nor sandboxes, nor child processes."""
    def forget(*_, _command=None, **__):
        if _command is not None:
            _command.close()

    folder = tmp_path_factory.mktemp('handlers')
    (folder / 'handlers.py').write_text(
        "import kopf\n@kopf.on.event('kopfexamples')\ndef fn(**_): pass\n")
    registry = kopf.get_default_registry()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for key in os.environ:
            if key.startswith('KOPF_'):
                patch.delenv(key)
        patch.setattr(sys, 'path', list(sys.path))
        patch.setattr(loggers, 'configure', lambda **_: None)
        patch.setattr(running, 'run', forget)
        patch.setattr(reloading, 'run', lambda *_, **__: 0)
        patch.setattr(supervising, 'run', lambda *_, **__: 0)
        patch.setattr(cli, '_make_fast_loop', lambda: None)
        yield
    kopf.set_default_registry(registry)


@given(line=lines)
@example(line=['run', '-A', 'handlers.py', '--liveness=http://['])
@example(line=['run', '-A', '/nowhere/handlers.py'])
@example(line=['run', '-A', '-m', '..json'])
def test_any_command_line(harmless, line):
    kopf.set_default_registry(kopf.OperatorRegistry())
    result = CliRunner().invoke(cli.main, line)
    assert result.exception is None or isinstance(result.exception, SystemExit), line
    assert result.exit_code in (0, 1, 2)
    assert result.exit_code == 0 or result.output.strip()
    assert len(result.output) < 50_000
