"""
Service accounts with roles: who an operator in a cluster is.
"""
import asyncio
import concurrent.futures
import subprocess
import sys

import yaml

from tests.e2e.kubes import Kube, KubeError

RBAC = '/apis/rbac.authorization.k8s.io/v1'
HOME = '/api/v1/namespaces/default/serviceaccounts'


async def create(kube, cluster, path, name, roles):
    """
    Make a service account with these roles, all of this name; write its kubeconfig to the path.

    Roles without a namespace are for the namespace of the account, which is ``default``.
    """
    await kube.request('POST', HOME, body={'metadata': {'name': name}})
    for role in roles:
        url, kind = get_url(role), role['kind']
        await kube.request('POST', f'{url}/{kind.lower()}s', body={
            'metadata': {'name': name}, 'rules': role['rules']})
        await kube.request('POST', f'{url}/{kind.lower()}bindings', body={
            'metadata': {'name': name},
            'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': kind, 'name': name},
            'subjects': [{'kind': 'ServiceAccount', 'name': name, 'namespace': 'default'}]})
    return await log_in(kube, cluster, path, name)


async def log_in(kube, cluster, path, name, *, namespace='default'):
    """Write a kubeconfig with a token of the service account to the path."""
    token = await kube.request(
        'POST', f'/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token', body={
            'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}})
    with open(cluster, encoding='utf-8') as file:
        config = yaml.safe_load(file)
    config['users'] = [{'name': user['name'], 'user': {'token': token['status']['token']}}
                       for user in config['users']]
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def delete(kube, name, roles):
    for path in [f'{HOME}/{name}', *(
            f'{get_url(role)}/{role["kind"].lower()}{part}/{name}'
            for role in roles for part in ('s', 'bindings'))]:
        try:
            await kube.request('DELETE', path)
        except KubeError as e:
            assert e.status == 404


def get_url(role):
    if role['kind'] == 'ClusterRole':
        return RBAC
    return f'{RBAC}/namespaces/{role.get("metadata", {}).get("namespace", "default")}'


def print_roles(*args, **options):
    """Run ``kopf rbac`` with these arguments, and return the roles."""
    process = subprocess.run(
        [sys.executable, '-m', 'kopf', 'rbac', *args], capture_output=True, text=True, **options)
    assert process.returncode == 0, process.stderr
    return list(yaml.safe_load_all(process.stdout))


def wait(cluster, work):
    """Do what is asynchronous, by a client of its own, while the loop of the test is blocked."""
    async def run():
        async with Kube(cluster) as kube:
            return await work(kube)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, run()).result()
