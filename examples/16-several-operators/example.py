"""
Several operators in one process: each with handlers and settings of its own, in a thread and an
event loop of its own. One welcomes the objects, the other one counts their changes. As both handle
the same objects, the second one keeps its notes under a prefix of its own: else, they would take
each other's for theirs. Type ``python examples/16-several-operators/example.py`` (it is not ``kopf
run`` here), and ``kubectl apply -f examples/obj.yaml``; change the object, and see in its
annotations what either of them remembers.
"""
import asyncio
import logging
import signal
import threading

import kopf

welcoming = kopf.OperatorRegistry()
counting = kopf.OperatorRegistry()


@kopf.on.create('kopfexamples', registry=welcoming)
def welcome(name, logger, **_):
    logger.info(f"Welcome, {name}!")


@kopf.on.update('kopfexamples', registry=counting)
def count(status, logger, **_):
    changes = status.get('count', 0) + 1
    logger.info(f"Changes so far: {changes}.")
    return changes


@kopf.on.startup(registry=counting)
def configure(settings, **_):
    prefix = 'counting.example.com'
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix)
    settings.persistence.finalizer = f'{prefix}/finalizer'


def run_operator(registry, stop):
    asyncio.run(kopf.operator(
        registry=registry, stop_flag=stop, clusterwide=True, standalone=True))


def main():
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    threads = [
        threading.Thread(target=run_operator, args=[registry, stop])
        for registry in (welcoming, counting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == '__main__':
    main()
