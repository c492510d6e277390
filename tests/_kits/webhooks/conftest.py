import contextlib

import pytest

import kopf


class Journal(list):
    """The calls of the framework's function, and what it is to answer."""

    def __init__(self):
        super().__init__()
        self.behave = None

    async def __call__(self, request, *, webhook=None, headers=None, sslpeer=None):
        self.append({'request': request, 'webhook': webhook, 'headers': headers,
                     'sslpeer': sslpeer})
        if self.behave is not None:
            await self.behave()
        return {'response': {'uid': 'uid1', 'allowed': True}}


@pytest.fixture()
def fn():
    return Journal()


@pytest.fixture()
async def serve(fn):
    """Run a server, and return its first client config; by default, it is one of HTTP."""
    async with contextlib.AsyncExitStack() as stack:
        async def start(server=None, **kwargs):
            if server is None:
                server = kopf.WebhookServer(
                    **{'addr': '127.0.0.1', 'port': 0, 'insecure': True, **kwargs})
            await stack.enter_async_context(server)
            iterator = server(fn)
            config = await anext(iterator)
            start.iterator = iterator
            return config
        yield start


@pytest.fixture()
async def port(serve):
    return get_port(await serve())


def get_port(config):
    return int(config['url'].split(':')[2].split('/')[0])
