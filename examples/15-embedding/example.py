"""
Embedding: an application that contains an operator. The operator keeps the newest state of objects
in memory. The application, a web server, shows the objects. The operator has its own thread and
event loop, and stops when the application stops. Type
``python examples/15-embedding/example.py 8080`` (instead of ``kopf run``),
``kubectl apply -f examples/obj.yaml``, and see ``http://localhost:8080`` in a browser; change or
delete the object, and reload the page. ``kopf.testing.explore`` does not try its faults, as this is
a program of its own, which writes nothing to the cluster. After a restart, it gets all objects
again.
"""
import asyncio
import http.server
import json
import sys
import threading

import kopf

OBJECTS: dict[str, dict] = {}


@kopf.on.event('kopfexamples')
def remember(type, namespace, name, spec, **_):
    if type == 'DELETED':
        OBJECTS.pop(f'{namespace}/{name}', None)
    else:
        OBJECTS[f'{namespace}/{name}'] = dict(spec)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.end_headers()
        self.wfile.write(json.dumps(OBJECTS).encode())


def run_operator(**kwargs):
    asyncio.run(kopf.operator(clusterwide=True, standalone=True, **kwargs))


def main(port):
    ready, stop = threading.Event(), threading.Event()
    flags = {'ready_flag': ready, 'stop_flag': stop}
    operator = threading.Thread(target=run_operator, kwargs=flags)
    operator.start()
    try:
        while not ready.wait(1):
            if not operator.is_alive():
                sys.exit("The operator has not started.")
        with http.server.ThreadingHTTPServer(('localhost', port), Page) as server:
            print(f"See http://localhost:{port}", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print("Good-bye.")
    finally:
        stop.set()
        operator.join()


if __name__ == '__main__':
    main(int(sys.argv[1]))
