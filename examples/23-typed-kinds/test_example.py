import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture()
def operator(kopf_operator):
    """The operator, with only the rights that ``kopf rbac`` prints, and the definition."""
    operator = kopf_operator(HERE / 'example.py', rbac=True)
    yield operator
    assert not operator.confinement.refused


def test_each_cache_has_a_deployment(kopf_client, operator):
    kopf_client.create('caches', 'hello', spec={'memory': '128Mi'})
    server = kopf_client.wait('deployments', 'hello')
    [container] = server['spec']['template']['spec']['containers']
    assert container['image'] == 'valkey:latest'
    assert container['resources']['limits'] == {'memory': '128Mi'}

    kopf_client.patch('deployments', 'hello', {'status': {'replicas': 1, 'readyReplicas': 1}},
                      subresource='status')
    kopf_client.wait('caches', 'hello', lambda obj: obj['status']['readyReplicas'] == 1)
    kopf_client.patch('caches', 'hello', {'spec': {'replicas': 3}})
    kopf_client.wait('deployments', 'hello', lambda obj: obj['spec']['replicas'] == 3)
    assert operator.wait_log("From 1 to 3 replicas.")


def test_the_api_refuses_what_the_class_excludes(kopf_client, operator):
    kopf_client.create('caches', 'hello')
    for spec in [{'replicas': 99}, {'engine': 'Memcached'}, {'engine': 'Redis'}]:
        with pytest.raises(Exception, match=r'is invalid'):
            kopf_client.patch('caches', 'hello', {'spec': spec})


def test_the_definition_is_up_to_date():
    import subprocess
    import sys
    subprocess.run([sys.executable, '-m', 'kopf', 'crd', HERE / 'example.py',
                    '--drift', HERE / 'crd.yaml'], check=True)
