"""
What is on several pages fits together: names, labels, ports, paths, permissions, options.

A reader takes the deployment from one page, and its probes, its monitor, its replicas from others.
"""
import re
import shlex
import urllib.parse

import pytest
import yaml

from kopf import cli
from kopf._kits.typed.rights import FEATURES
from tests.docs import snippets

PAGES = [
    'deployment', 'rbac', 'probes', 'metrics', 'availability', 'leadership', 'scaling', 'uninstall']
ALL = [snippet for snippet in snippets.collect() if snippet.page.removesuffix('.md') in PAGES]
MANIFESTS = [
    (snippet.page, manifest) for snippet in ALL if snippet.language == 'yaml'
    for manifest in yaml.safe_load_all(snippet.text)]
COMMANDS = [
    (snippet.page, shlex.split(command.replace('\\\n', ' '), comments=True))
    for snippet in ALL if snippet.language == 'console'
    for command in re.findall(r'^\$ ((?:\\\n|.)*)', snippet.text, re.MULTILINE)]


def find(kind, page):
    manifest, = [manifest for where, manifest in MANIFESTS
                 if where == page and manifest.get('kind') == kind]
    return manifest


def parse(words):
    """The options of a command of Kopf."""
    name, command, rest = cli.main.resolve_command(
        cli.main.make_context('kopf', words[1:2], resilient_parsing=True), words[1:])
    return name, command.make_context(name, rest, resilient_parsing=True).params


DEPLOYMENT = find('Deployment', 'deployment.md')
TEMPLATE = DEPLOYMENT['spec']['template']
CONTAINER, = TEMPLATE['spec']['containers']
PORTS = {port['name']: port['containerPort'] for port in CONTAINER['ports']}
_, OPTIONS = parse(['kopf', 'run', *CONTAINER['args']])
URLS = {option: urllib.parse.urlsplit(OPTIONS[f'{option}_endpoint'])
        for option in ('liveness', 'metrics')}


def find_all(value, *keys):
    """All values of these keys, wherever they are."""
    if isinstance(value, dict):
        yield from (inner for key, inner in value.items() if key in keys)
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from find_all(inner, *keys)


@pytest.mark.parametrize('page, manifest', MANIFESTS)
def test_selectors_select_the_pods_of_the_deployment(page, manifest):
    for labels in find_all(manifest, 'matchLabels'):
        assert labels == TEMPLATE['metadata']['labels'], page


def test_selectors_of_commands_select_the_pods_of_the_deployment():
    shown = [
        word for _, words in COMMANDS if words[0] == 'kubectl'
        for option, word in zip(words, words[1:], strict=False)
        if option in ('-l', '--selector') and 'kopf.dev/' not in word]
    labels = {f'{name}={value}' for name, value in TEMPLATE['metadata']['labels'].items()}
    assert shown and set(shown) <= labels


@pytest.mark.parametrize('page, manifest', MANIFESTS)
def test_probes_monitors_and_policies_use_ports_of_the_deployment(page, manifest):
    used = [value for value in find_all(manifest, 'port') if value != 'any']
    assert {port for port in used if isinstance(port, str)} <= set(PORTS), page
    assert {port for port in used if isinstance(port, int)} <= set(PORTS.values()), page


@pytest.mark.parametrize('page, manifest', MANIFESTS)
def test_probes_ask_what_the_operator_serves(page, manifest):
    for probe in find_all(manifest, 'livenessProbe', 'readinessProbe'):
        assert probe['httpGet']['path'] == URLS['liveness'].path
        assert PORTS[probe['httpGet']['port']] == URLS['liveness'].port
    for endpoints in find_all(manifest, 'podMetricsEndpoints'):
        for endpoint in endpoints:
            assert endpoint['path'] == URLS['metrics'].path
            assert PORTS[endpoint['port']] == URLS['metrics'].port


def test_the_probes_are_those_of_the_deployment():
    (_, shown), = [(page, manifest) for page, manifest in MANIFESTS if page == 'probes.md']
    container, = shown['spec']['template']['spec']['containers']
    assert container.items() <= CONTAINER.items()


def test_requests_go_to_ports_and_paths_of_the_page():
    for page in ('probes.md', 'metrics.md'):
        served = {
            (url.port, url.path)
            for where, words in COMMANDS if where == page and words[0] == 'kopf'
            for value in parse(words)[1].values() if str(value).startswith('http')
            for url in [urllib.parse.urlsplit(value)]}
        asked = {
            (url.port, url.path)
            for where, words in COMMANDS if where == page and words[0] == 'curl'
            for url in [urllib.parse.urlsplit(words[-1])]}
        assert asked and asked <= served, page


def test_the_role_of_the_deployment_is_that_of_the_page_of_roles():
    assert find('ClusterRole', 'deployment.md')['rules'] == find('ClusterRole', 'rbac.md')['rules']


@pytest.mark.parametrize('page, features', [
    ('leadership.md', ['lease_creation', 'lease']), ('scaling.md', ['shards'])])
def test_roles_for_leases_are_those_of_the_code(page, features):
    rule, = find('Role', page)['rules']
    assert set(rule['verbs']) == {verb for name in features for verb in FEATURES[name].verbs}


def test_commands_print_the_same_operator():
    shown = [parse(words)[1] for _, words in COMMANDS if words[:2] == ['kopf', 'manifests']]
    assert {options['name'] for options in shown} == {DEPLOYMENT['metadata']['name']}
    images = {options['image'] for options in shown} - {'IMAGE'}
    others = [words[-2 if 'build' in words else -1]
              for _, words in COMMANDS if words[0] == 'docker']
    assert images == set(others) == {CONTAINER['image']}


def test_commands_use_the_namespace_of_the_operator():
    namespaces = {
        words[words.index('-n') + 1] for page, words in COMMANDS
        if words[0] == 'kubectl' and '-n' in words}
    assert namespaces == {DEPLOYMENT['metadata']['namespace']}
    assert find('NetworkPolicy', 'deployment.md')['metadata']['namespace'] in namespaces


def test_the_lease_that_is_looked_at_is_the_one_of_the_option():
    elected = {parse(words)[1]['leader_elect'] for page, words in COMMANDS
               if page == 'availability.md' and words[:2] == ['kopf', 'manifests']}
    looked = {words[3] for page, words in COMMANDS
              if page == 'availability.md' and words[1:3] == ['get', 'lease']}
    assert elected == looked


def test_permissions_of_the_table_are_those_of_the_code():
    page = (snippets.DOCS / 'deployment.md').read_text()
    _, _, part = page.partition('## Grant permissions')
    _, _, *rows = [line.split(' | ')[1] for line in part.splitlines() if line.startswith('| ')]
    known = {verb for feature in FEATURES.values() for verb in feature.verbs}
    shown = {verb for text in rows for verb in re.findall(r'`([a-z]+)`', text.partition(' of ')[0])}
    assert shown == known
