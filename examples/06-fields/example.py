"""
Fields: handlers for a part of an object, which are not bothered with the rest of it. One gets the
old and the new value of a field, at the creation too (there is no old value then); one gets the
labels' diff, with the names in the labels only; one is called for one step only, from a value to
another one. Type ``kubectl apply -f examples/obj.yaml``, then ``kubectl patch kopfexample
kopf-example-1 --type merge -p '{"spec": {"duration": "5m"}}'``, ``kubectl label kopfexample
kopf-example-1 somelabel- colour=red``, and change ``spec.field`` to ``draft``, and to
``published``. See which handlers are called for what.
"""
import kopf


@kopf.on.field('kopfexamples', field='spec.duration')
def reschedule(old, new, logger, **_):
    if old is None:
        logger.info(f"It is going to take {new}.")
    else:
        logger.info(f"It is going to take {new} instead of {old}.")


@kopf.on.update('kopfexamples', field='metadata.labels')
def relabel(diff, logger, **_):
    for operation, field, old, new in diff:
        logger.info(f"Labels: {operation} {'.'.join(field)}, from {old} to {new}.")


@kopf.on.update('kopfexamples', field='spec.field', old='draft', new='published')
def announce(name, logger, **_):
    logger.info(f"News: {name} is published!")
