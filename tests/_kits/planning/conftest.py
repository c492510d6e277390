
import pytest

from kopf import testing


@pytest.fixture()
def cluster(crd):
    """A sandbox as the cluster, to which nothing must be written while a plan is made."""
    with testing.run_sandbox() as sandbox:
        sandbox.client.load(crd)
        yield sandbox


@pytest.fixture()
def client(cluster):
    return cluster.client


@pytest.fixture()
def plan(cluster, script):
    """Plan a script of handlers, or several of them."""
    def make(text, *, against=None, origin=None, **options):
        old = [] if against is None else [script(against, name='old.py')]
        faults = [testing.Fault(action='refuse', verb=verb) for verb in (
            'create', 'update', 'patch', 'delete*')]
        for fault in faults:
            cluster.sandbox.faults.add(fault)
        try:
            return testing.plan(
                script(text), origin=origin or cluster.credentials, against=old, **options)
        finally:
            cluster.sandbox.faults.clear()
            assert not any(fault.hits for fault in faults)
    return make


@pytest.fixture()
def parent(client):
    return client.create('kopfexamples', 'example', spec={'n': 1})


@pytest.fixture()
def make_workload(client):
    """Create a Deployment, or the like."""
    def make(kind='Deployment', name='web', *, replicas=3, **spec):
        labels = {'app': name}
        return client.create({
            'apiVersion': 'apps/v1', 'kind': kind, 'metadata': {'name': name},
            'spec': {
                **({} if kind == 'DaemonSet' else {'replicas': replicas}),
                **({'serviceName': name} if kind == 'StatefulSet' else {}),
                'selector': {'matchLabels': labels},
                'template': {'metadata': {'labels': labels}, 'spec': {'containers': [
                    {'name': 'app', 'image': 'nginx:1'},
                    {'name': 'log', 'image': 'log:1'}]}},
                **spec}})
    return make
