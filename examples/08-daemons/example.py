"""
Daemons: they run as long as their object exists. The first daemon, a coroutine, checks whether a
port is open. The second daemon, a thread, because its call blocks, looks up the addresses of the
host. Both log only changes. They read the current state of the object, so an edit needs no restart.
They stop with the object, with the operator, and while the object has the label ``paused``. Type
``kubectl apply`` with ``crd.yaml`` and ``obj.yaml`` of this folder. Start and stop
``python -m http.server 8080``; type ``kubectl label check local-web paused=yes``, and ``paused-``.
See the messages in the log. ``kopf.testing.explore`` does not try its faults, as there are no
writes, only connections to a real host. After a restart, the daemons log the current state once
more.
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
    except OSError:  # timeouts, too
        return False
    writer.close()
    return True
