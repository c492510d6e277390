"""
Every snippet of the documentation runs: see `tests.docs.snippets` for how.
"""
import ast
import asyncio
import contextlib
import importlib.util
import itertools
import json
import logging
import pathlib
import re
import shlex

import click
import pytest
import yaml

import kopf
from kopf import cli, testing
from kopf._kits.sandbox import faults
from tests import pytests
from tests.docs import snippets

ROOT = pathlib.Path(__file__).parents[2]
EXTRAS = {'full-auth', 'uvloop', 'dev', 'metrics', 'reload', 'sandbox', 'testing', 'tracing'}
SHOWN = {'text', 'dockerfile', 'go'}
"""What is shown to readers as it is: outputs, drawings, files of other programs."""

OBJECT = {
    'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample',
    'metadata': {
        'name': 'kopf-example-1', 'namespace': 'default',
        'labels': {'somelabel': 'somevalue'}, 'annotations': {'someannotation': 'somevalue'}},
    'spec': {'field': 'value', 'items': ['item1', 'item2'], 'duration': '1m', 'size': '1G',
             'replicas': 2},
}
POD = {
    'apiVersion': 'v1', 'kind': 'Pod',
    'metadata': {'name': 'pod1', 'namespace': 'default', 'labels': {'app': 'web'}},
    'spec': {'containers': [{'name': 'main', 'image': 'busybox'}]},
}
CHANGE = {
    'spec': {'field': 'changed', 'items': ['item2', 'item3'], 'size': '2G', 'whom': 'everybody'},
    'metadata': {'labels': {'somelabel': None, 'another': 'label'}},
}
ALL = list(snippets.collect())


def select(*languages, **marks):
    chosen = [
        snippet for snippet in ALL
        if snippet.language in languages
        and all((mark in snippet.marks) == wanted for mark, wanted in marks.items())]
    return pytest.mark.parametrize('snippet', chosen, ids=str)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of a reader who does as the page says."""
    for name in ('crd.yaml', 'obj.yaml'):
        (tmp_path / name).write_text((ROOT / 'examples' / name).read_text())
    (tmp_path / 'examples').symlink_to(ROOT / 'examples')
    (tmp_path / 'peering.yaml').write_text((ROOT / 'peering.yaml').read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def loggers():
    """Snippets silence loggers, which other tests of this process look at."""
    yield
    for name in logging.root.manager.loggerDict:
        if name.partition('.')[0] == 'kopf':
            logging.getLogger(name).disabled = False


@pytest.fixture()
def errors():
    """What is logged as an error."""
    class Collector(logging.Handler):
        def emit(self, record):
            if record.levelno >= logging.ERROR:
                found.append(self.format(record))

    found = []
    handler = Collector()
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


def test_all_snippets_are_of_a_known_sort():
    known = {'python', 'yaml', 'console', 'json', *SHOWN}
    assert {snippet.language for snippet in ALL} <= known


def test_whatever_is_not_run_has_a_reason():
    for snippet in ALL:
        for mark in ('fails', 'script', 'fragment'):
            assert snippet.marks.get(mark, 'a reason'), f'{snippet}: {mark}'


@select('python', fragment=False, script=False, test=False)
def test_operators_do_their_work(snippet, folder, errors, record_property, monkeypatch):
    record_property('snippet', 'operators run')
    path = snippet.write_files(folder)
    testing.virtual_time(go_through)(snippet, path, folder, monkeypatch)
    if 'fails' in snippet.marks:
        assert errors, "It does not fail, although it is said to."
    else:
        assert not errors, '\n'.join(errors)


async def go_through(snippet, path, folder, monkeypatch):
    """Let an operator see the lives of objects: they are created, changed, and deleted."""
    others, objects = find_manifests(snippet)
    async with testing.open_api('sandbox') as api:
        api.write_kubeconfig(folder / 'kubeconfig')
        monkeypatch.setenv('KUBECONFIG', str(folder / 'kubeconfig'))
        if 'import kubernetes' in path.read_text():
            kopf.login_via_client()
        await api.client.load(ROOT / 'examples' / 'crd.yaml', ROOT / 'peering.yaml', *others)
        await api.client.create(POD)
        async with api.operator(path, registry=kopf.OperatorRegistry()) as operator:
            await asyncio.sleep(5)
            for obj in objects:
                await api.client.create(obj)
            await asyncio.sleep(5)
            await bind_volumes(api.client)
            for obj in objects:
                await api.client.patch(obj, CHANGE)
            await asyncio.sleep(65)
            for obj in objects:
                await api.client.delete(obj)
            for obj in objects:
                await api.client.wait_gone(obj, timeout=200)
            assert operator.log


def find_manifests(snippet):
    """What the page has defined so far; and the objects of the kinds that it has defined."""
    manifests = [
        manifest for other in snippet.before
        if other.language == 'yaml' and 'fragment' not in other.marks
        for manifest in yaml.safe_load_all(other.text)]
    kinds = {'KopfExample', *(
        obj['spec']['names']['kind'] for obj in manifests
        if obj['kind'] == 'CustomResourceDefinition')}
    objects = {(obj['kind'], obj['metadata']['name']): obj
               for obj in [OBJECT, *manifests] if obj['kind'] in kinds}
    return [obj for obj in manifests if obj['kind'] not in kinds], list(objects.values())


async def bind_volumes(client):
    """Do what a controller of volumes does: those that are in use can be resized."""
    for pvc in await client.list('persistentvolumeclaims'):
        await client.patch(pvc, {'spec': {'volumeName': 'any'}})
        await client.patch(
            pvc, {'status': {'phase': 'Bound', 'capacity': pvc['spec']['resources']['requests']}},
            subresource='status')


@select('python', script=True)
def test_programs_are_imported(snippet, folder, record_property):
    record_property('snippet', 'programs imported')
    path = snippet.write_files(folder)
    known = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    try:
        spec = importlib.util.spec_from_file_location('docs_snippet', path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        kopf.set_default_registry(known)


@select('python', test=True)
def test_tests_pass(snippet, folder, record_property):
    record_property('snippet', 'tests run')
    path = snippet.write_files(folder)
    test = folder / 'test_it.py'
    path.replace(test)
    output = folder / 'output'
    code = pytests.run(
        ['-p', 'no:cacheprovider', '-p', 'pytest_kopf', test.name], folder=folder, output=output,
        # Those that are installed here, and are not needed, would take half of the time.
        env={'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'})
    assert code == 0, output.read_text()


@select('python', fragment=True)
def test_fragments_of_python_are_python(snippet, record_property):
    record_property('snippet', 'fragments parsed')
    ast.parse(snippet.text)


@select('yaml', fragment=False)
def test_manifests_are_accepted_by_the_api(snippet, folder, record_property):
    record_property('snippet', 'manifests applied')

    async def apply():
        async with testing.open_api('sandbox') as api:
            await api.client.load(ROOT / 'examples' / 'crd.yaml', ROOT / 'peering.yaml')
            for other in snippet.before:
                if other.language == 'yaml' and 'kind: CustomResourceDefinition' in other.text:
                    await api.client.load(*yaml.safe_load_all(other.text))
            await api.client.load(*yaml.safe_load_all(snippet.text))

    testing.virtual_time(apply)()


@select('yaml', fragment=True)
def test_fragments_of_yaml_are_yaml(snippet, record_property):
    record_property('snippet', 'fragments parsed')
    assert list(yaml.safe_load_all(snippet.text))


@select('json')
def test_json_is_json(snippet, record_property):
    record_property('snippet', 'JSON parsed')
    for line in snippet.text.splitlines() if 'lines' in snippet.marks else [snippet.text]:
        json.loads(line)


@select(*SHOWN)
def test_what_is_only_shown_is_not_empty(snippet, record_property):
    record_property('snippet', 'only shown')
    assert snippet.text.strip()


@select('console', fragment=False)
def test_commands_exist_with_their_options(snippet, folder, record_property, monkeypatch):
    record_property('snippet', 'consoles checked')
    for other in (*snippet.before, snippet):
        named = re.findall(r'(?<!\S)[\w-]+\.(?:py|yaml)\b', other.text)
        for name in [*named, other.marks.get('file', 'handlers.py')]:
            (folder / name).touch()
    commands = re.findall(r'^\$ ((?:\\\n|.)*)', snippet.text, re.MULTILINE)
    assert commands, "There are no commands: lines that begin with '$ '."
    for command in commands:
        words = shlex.split(command.replace('$RANDOM', '12345').replace('\\\n', ' '), comments=True)
        words = list(itertools.takewhile(lambda word: word not in ('&', '|', '>'), words))
        while re.match(r'\w+=', words[0]):
            words.pop(0)
        if words[0] == 'opentelemetry-instrument':  # it runs what follows
            words.pop(0)
        check = {'kopf': check_kopf, 'pip': check_pip, 'kubectl': check_kubectl}.get(
            words[0].rsplit('/')[-1], check_foreign)
        check(words)


def check_kopf(words):
    context = cli.main.make_context('kopf', words[1:2], resilient_parsing=True)
    with contextlib.suppress(click.exceptions.Exit):  # --help
        name, command, _ = cli.main.resolve_command(context, words[1:])
        if command is not None:
            options = command.make_context(name, words[2:], parent=context).params
            for fault in options.get('fault', ()):
                faults.parse(fault)


def check_pip(words):
    for word in words[2:]:  # the name alone is that of the release, which is another code base
        assert not re.match(r'kopf(\[|$)', word), word
    for extras in re.findall(r'kopf\[(.*?)\]', ' '.join(words)):
        assert set(extras.split(',')) <= EXTRAS


def check_kubectl(words):
    assert words[1] in {
        'annotate', 'apply', 'config', 'create', 'delete', 'describe', 'edit', 'get', 'label',
        'patch', 'logs', 'rollout', 'scale', 'wait'}


def check_foreign(words):
    assert words[0] in {
        'cat', 'cd', 'curl', 'docker', 'export', 'eval', 'git', 'grep', 'minikube', 'mkdir', 'mv',
        'openssl', 'pytest', 'python', 'python3', 'sed', 'source', 'unset', '.',
    }, f"What is {words[0]}?"


def find_deployed(*pages):
    return {manifest['kind']: manifest for snippet in ALL
            if snippet.page in pages and snippet.language == 'yaml'
            for manifest in yaml.safe_load_all(snippet.text)}


def test_the_deployment_runs_what_its_image_contains():
    deployment = find_deployed('deployment.md')['Deployment']
    container, = deployment['spec']['template']['spec']['containers']
    dockerfile, = [snippet.text for snippet in ALL if snippet.marks.get('file') == 'Dockerfile']
    assert container['command'] == ['kopf', 'run']
    assert f'\nCOPY {container["args"][-1]} .\n' in dockerfile
    ports = {port['name'] for port in container['ports']}
    assert container['livenessProbe']['httpGet']['port'] in ports


def test_monitors_select_the_deployment():
    manifests = find_deployed('deployment.md', 'metrics.md')
    template = manifests['Deployment']['spec']['template']
    container, = template['spec']['containers']
    monitor = manifests['PodMonitor']['spec']
    assert monitor['selector']['matchLabels'] == template['metadata']['labels']
    served = {port['name'] for port in container['ports']}
    assert {endpoint['port'] for endpoint in monitor['podMetricsEndpoints']} <= served
    assert any(arg.startswith('--metrics=') for arg in container['args'])


def test_the_walkthrough_leads_to_the_operator_of_the_examples():
    folder = ROOT / 'examples' / '18-walkthrough'
    shown = {snippet.marks['file']: snippet.text for snippet in ALL
             if snippet.page in ('quickstart.md', 'walkthrough.md') and 'file' in snippet.marks}
    assert yaml.safe_load(shown['website.yaml']) == yaml.safe_load(
        (folder / 'website.yaml').read_text())
    for name, file in [('handlers.py', 'example.py'), ('fakedns.py', 'fakedns.py')]:
        _, *code = ast.parse((folder / file).read_text()).body
        assert ast.unparse(code) == ast.unparse(ast.parse(shown[name]).body)
