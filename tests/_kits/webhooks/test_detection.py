import pytest

import kopf
from kopf._kits.webhooks import detection, tunnels
from kopf._kits.webhooks.detection import recognise
from tests._kits.webhooks.conftest import get_port


@pytest.mark.parametrize(('names', 'host'), [
    ([], None),
    (['kubernetes', 'kubernetes.default.svc', 'localhost'], None),
    (['minikubeCA', 'system:masters', 'minikube'], 'host.minikube.internal'),
    (['kubernetes', 'control-plane.minikube.internal'], 'host.minikube.internal'),
    (['k3s-server-ca@1600000000', 'k3s'], 'host.k3d.internal'),
    (['kubernetes', 'docker-for-desktop', 'localhost'], 'host.docker.internal'),
    (['kubernetes.docker.internal'], 'host.docker.internal'),
    (['notminikube', 'k3something'], None),
])
def test_clusters_are_recognised_by_their_certificates(names, host):
    assert recognise(names) == host


async def test_without_a_cluster_it_is_a_usual_server(serve, monkeypatch, tmp_path):
    monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'nothing'))
    assert await kopf.WebhookAutoServer.guess_host() is None
    config = await serve(kopf.WebhookAutoServer(addr='127.0.0.1', port=0))
    assert config['url'] == f'https://127.0.0.1:{get_port(config)}'


async def test_the_certificate_is_that_of_the_api(serve, monkeypatch, tmp_path):
    api = await serve(kopf.WebhookServer(
        addr='127.0.0.1', port=0, extra_sans=['control-plane.minikube.internal']))
    kubeconfig = tmp_path / 'kubeconfig'
    kubeconfig.write_text(f"""
current-context: x
contexts: [{{name: x, context: {{cluster: x, user: x}}}}]
clusters: [{{name: x, cluster: {{server: "{api['url']}"}}}}]
users: [{{name: x, user: {{token: x}}}}]
""")
    monkeypatch.setenv('KUBECONFIG', str(kubeconfig))
    assert await kopf.WebhookAutoServer.guess_host() == 'host.minikube.internal'
    config = await serve(kopf.WebhookAutoServer(port=0))
    assert config['url'] == f'https://host.minikube.internal:{get_port(config)}'
    config = await serve(kopf.WebhookAutoTunnel(port=0, path='path'))
    assert config['url'] == f'https://host.minikube.internal:{get_port(config)}/path'


async def test_a_given_host_is_not_guessed(serve, monkeypatch):
    async def guess():
        raise AssertionError

    monkeypatch.setattr(detection.ClusterDetector, 'guess_host', staticmethod(guess))
    config = await serve(kopf.WebhookAutoServer(port=0, host='example.com'))
    assert config['url'] == f'https://example.com:{get_port(config)}'


async def test_auto_tunnels_are_tunnels_where_there_is_no_other_way(serve, monkeypatch, tmp_path):
    monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'nothing'))
    monkeypatch.setattr(tunnels, '_import_pyngrok', lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await serve(kopf.WebhookAutoTunnel())
