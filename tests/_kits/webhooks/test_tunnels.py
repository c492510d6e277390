"""
Tunnels with a library that only pretends: the real one needs an account and the Internet.
"""
import asyncio
import sys
import threading
import types

import pytest

import kopf
from kopf._kits.webhooks.certificates import MissingLibraryError
from tests._kits.webhooks.clients import ask, build_request


@pytest.fixture()
def pyngrok(monkeypatch):
    calls = []
    package, conf, ngrok = map(types.ModuleType, ['pyngrok', 'pyngrok.conf', 'pyngrok.ngrok'])
    conf.PyngrokConfig = lambda **kwargs: kwargs

    def connect(addr, *, pyngrok_config, bind_tls):
        calls.append(('connect', addr, pyngrok_config, bind_tls))
        return types.SimpleNamespace(public_url='https://random.ngrok.test')

    ngrok.connect = connect
    ngrok.disconnect = lambda url, *, pyngrok_config: calls.append(('disconnect', url))
    for module in (package, conf, ngrok):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


async def test_the_tunnel_leads_to_a_local_server(pyngrok, fn):
    async with kopf.WebhookNgrokTunnel(path='path') as tunnel:
        config = await anext(tunnel(fn))
        [(_, port, _, bind_tls)] = pyngrok
        assert bind_tls
        assert config == {'url': 'https://random.ngrok.test/path'}
        assert await ask(int(port), build_request(path='/path/id')) == 200
    assert [call[0] for call in pyngrok] == ['connect', 'disconnect']
    with pytest.raises(OSError):
        await ask(int(port), build_request())


async def test_a_tunnel_that_is_cancelled_while_it_connects_is_disconnected(
        pyngrok, fn, monkeypatch):
    begun, going = threading.Event(), threading.Event()
    connect = sys.modules['pyngrok.ngrok'].connect

    def connect_slowly(*args, **kwargs):
        begun.set()
        going.wait(10)
        return connect(*args, **kwargs)

    monkeypatch.setattr(sys.modules['pyngrok.ngrok'], 'connect', connect_slowly)
    task = asyncio.create_task(anext(kopf.WebhookNgrokTunnel()(fn)))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    going.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call[0] for call in pyngrok] == ['connect', 'disconnect']


async def test_the_secret_path_is_not_logged(pyngrok, fn, caplog):
    caplog.set_level('DEBUG')
    async with kopf.WebhookNgrokTunnel(path='nobody-guesses-it') as tunnel:
        config = await anext(tunnel(fn))
    assert 'nobody-guesses-it' in config['url']
    assert 'https://random.ngrok.test' in caplog.text
    assert 'nobody-guesses-it' not in caplog.text


async def test_the_options_are_passed_on(pyngrok, fn, tmp_path):
    async with kopf.WebhookNgrokTunnel(
            token='token', region='eu', binary=tmp_path / 'ngrok') as tunnel:
        await anext(tunnel(fn))
    assert pyngrok[0][2] == {
        'auth_token': 'token', 'region': 'eu', 'ngrok_path': str(tmp_path / 'ngrok')}


async def test_without_the_library_it_is_said_what_to_do(monkeypatch, fn):
    monkeypatch.setitem(sys.modules, 'pyngrok', None)
    with pytest.raises(MissingLibraryError, match="pip install pyngrok"):
        await anext(kopf.WebhookNgrokTunnel()(fn))
