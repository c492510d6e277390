"""
Sub-handlers: one handler for each item of the object, each with its own attempts and result. The
operator delivers every new item once, also when the list grows later. A heavy item takes two
attempts, and does not delay the others. Type ``kubectl apply -f examples/obj.yaml``, then ``kubectl
patch kopfexample kopf-example-1 --type merge -p '{"spec": {"items": ["item1", "heavy",
"light"]}}'``. See the deliveries in the log and in the status of the object.
"""
import functools

import kopf


@kopf.on.field('kopfexamples', field='spec.items')
def deliver_all(old, new, **_):
    for item in new or []:
        if item not in (old or []):
            kopf.register(functools.partial(deliver, item=item), id=item)


def deliver(*, item, retry, logger, **_):
    if item.startswith('heavy') and not retry:
        raise kopf.TemporaryError(f"{item} needs two people.", delay=1)
    logger.info(f"{item} is delivered.")
    return {'tries': retry + 1}
