"""
Daemons: they live as long as their object does. One of them, a coroutine, looks whether a port is
open; another one, a thread, since its call blocks, looks up the addresses of the host. Both tell of
changes only. They see the object as it is at the moment, so an edit needs no restart; they end with
the object, with the operator, and while the object is labelled as paused. Type ``kubectl apply``
with ``crd.yaml`` and ``obj.yaml`` of this folder; start and stop ``python -m http.server 8080``;
type ``kubectl label check local-web paused=yes``, and ``paused-``. See it all in the log.
"""
import asyncio
import socket

import kopf


@kopf.daemon('checks', labels={'paused': kopf.ABSENT}, cancellation_backoff=1)
async def watch_port(spec, stopped, logger, **_):
    known = None
    while not stopped:
        current = await is_open(spec['host'], spec['port'])
        if current != known:
            logger.info(f"{spec['host']}:{spec['port']} is {'open' if current else 'closed'}.")
            known = current
        await stopped.wait(spec['interval'])
    logger.info(f"The port is not watched any more: {stopped.reason.name}.")


@kopf.daemon('checks', labels={'paused': kopf.ABSENT}, backoff=5)
def watch_addresses(spec, stopped, logger, **_):
    known = None
    while not stopped:
        current = {str(info[4][0]) for info in socket.getaddrinfo(spec['host'], spec['port'])}
        if current != known:
            logger.info(f"{spec['host']} is at {', '.join(sorted(current))}.")
            known = current
        stopped.wait(spec['interval'])


async def is_open(host, port):
    try:
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # also when it takes too long
        return False
    writer.close()
    return True
