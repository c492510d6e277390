"""
Several operators in one process: each with its own handlers and settings, in its own thread and
event loop. The first operator welcomes the objects, the second operator counts their changes. Both
handle the same objects, so the second operator uses another prefix for its annotations. Otherwise,
each operator would use the annotations of the other. Type
``python examples/16-several-operators/example.py`` (instead of ``kopf run``), and
``kubectl apply -f examples/obj.yaml``; change the object, and see in its annotations what each
operator remembers. ``kopf.testing.explore`` does not try its faults, as this is a program of its
own with two operators.
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
