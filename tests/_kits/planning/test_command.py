"""The command: ``kopf plan``."""
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kopf import cli

CHILD = '''
@kopf.on.create('kopfexamples')
async def make(name, namespace, **_):
    print("This is printed.")
    await kopf.apply({'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {
        'name': name, 'namespace': namespace}})
'''


@pytest.fixture()
def run(cluster, tmp_path, monkeypatch, script, restored_log):
    """Run the command for a script; returns click's result."""
    path = tmp_path / 'kubeconfig'
    cluster.write_kubeconfig(path)
    monkeypatch.setenv('KUBECONFIG', str(path))
    return lambda *args, text=CHILD: CliRunner().invoke(cli.main, ['plan', script(text), *args])


@pytest.fixture()
def restored_log(monkeypatch):
    monkeypatch.setattr('kopf._core.actions.loggers.configure', lambda **_: None)


def test_the_plan_is_printed(run, parent):
    result = run()
    assert result.exit_code == 2, result.output
    assert result.stdout.startswith("# Would be created: 1\n+ configmaps default/example: created")


def test_the_code_is_0_without_changes(run):
    result = run()
    assert result.exit_code == 0
    assert "Nothing would change." in result.stdout


def test_only_the_plan_is_on_stdout(run, parent):
    assert json.loads(run('-o', 'json').stdout)['items'][0]['action'] == 'create'


def test_the_plan_is_markdown_on_request(run, parent):
    assert run('--output=markdown').stdout.startswith("### What the operator would do")


def test_another_version_is_compared(run, parent, script):
    result = run('--against', script(CHILD, name='old.py'))
    assert result.exit_code == 0, result.output


def test_a_context_is_used(run, parent):
    assert run('--context=admin').exit_code == 2


def test_an_absent_context_is_an_error(run):
    result = run('--context=absent')
    assert result.exit_code == 1
    assert 'absent' in result.output


@pytest.mark.parametrize('options, code', [
    ([], 2), (['--fail-on=deletions'], 1), (['--fail-on=restarts'], 2),
    (['--fail-on=deletions,restarts'], 1)])
def test_some_changes_fail_on_request(run, parent, client, options, code):
    client.create('configmaps', 'x')
    result = run(*options, text=CHILD.replace('print("This is printed.")', '''
    import aiohttp, os, pathlib, yaml
    config = yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text())
    async with aiohttp.ClientSession(config['clusters'][0]['cluster']['server']) as session:
        async with session.delete('/api/v1/namespaces/default/configmaps/x'):
            pass'''))
    assert result.exit_code == code, result.output


@pytest.mark.parametrize('args, text', [
    (['--fail-on=creations'], "'creations' is not one of 'deletions', 'restarts'."),
    (['--horizon=soon'], "'soon' is not a time, such as 90s, 30m, or 1h."),
    (['--horizon='], "'' is not a time, such as 90s, 30m, or 1h."),
    (['--horizon=0'], "'0' is not a time, such as 90s, 30m, or 1h."),
    (['--horizon=-1h'], "'-1h' is not a time, such as 90s, 30m, or 1h."),
    (['--horizon=inf'], "'inf' is not a time, such as 90s, 30m, or 1h."),
    (['--horizon=nan'], "'nan' is not a time, such as 90s, 30m, or 1h.")])
def test_wrong_options_are_explained(run, args, text):
    result = run(*args)
    assert result.exit_code == 2
    assert text in result.output


@pytest.mark.parametrize('value, seconds', [('90', 90), ('90s', 90), ('2m', 120), ('1.5h', 5400)])
def test_the_horizon_has_a_unit(run, parent, value, seconds):
    result = run('--horizon', value, text='''
@kopf.daemon('kopfexamples')
async def run(patch, **_):
    pass

@kopf.timer('kopfexamples', interval=1e9)
async def tick(patch, **_):
    raise kopf.TemporaryError("never", delay=30)
''')
    assert f"after {seconds} seconds of virtual time" in result.stdout


def test_without_handlers_there_is_an_error(run):
    result = run(text='')
    assert result.exit_code == 1
    assert "There are no handlers in" in result.output


def test_broken_files_are_explained(run):
    result = run(text='1/0')
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.output


def test_the_command_ends_though_threads_of_handlers_hang(cluster, tmp_path, script, parent):
    cluster.write_kubeconfig(tmp_path / 'kubeconfig')
    path = script('''
import time
@kopf.daemon('kopfexamples')
def hang(**_):
    while True:
        time.sleep(1)
''')
    done = subprocess.run(
        [sys.executable, '-m', 'kopf', 'plan', path], capture_output=True, text=True, timeout=30,
        env={'KUBECONFIG': str(tmp_path / 'kubeconfig'), 'PYTHONPATH': ':'.join(sys.path)})
    assert "The operator has not stopped" in done.stdout
    assert done.returncode == 1
