"""
A webhook server in a thread, which answers what the test tells it to.
"""
import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import trustme

Object = Any


class Hook:
    """
    Serves HTTPS on a free port; ``answer`` makes the response of a request, both as in reviews.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Object] = []
        self.answer: Callable[[Object], Object] = lambda _: {'allowed': True}
        self.delay = 0.0
        ca = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert('127.0.0.1').configure_cert(context)
        self.ca = base64.b64encode(ca.cert_pem.bytes()).decode()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
                hook.requests.append(review)
                time.sleep(hook.delay)
                response = {'uid': review['request']['uid'], **hook.answer(review['request'])}
                body = json.dumps({**{key: review[key] for key in ('kind', 'apiVersion')},
                                   'response': response}).encode()
                self.send_response(200)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(('127.0.0.1', 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={'poll_interval': 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def client_config(self) -> Object:
        return {'url': f'https://127.0.0.1:{self._server.server_port}/x', 'caBundle': self.ca}


def patch(*ops: Object) -> Object:
    """A response with a JSON patch."""
    encoded = base64.b64encode(json.dumps(list(ops)).encode()).decode()
    return {'allowed': True, 'patchType': 'JSONPatch', 'patch': encoded}
