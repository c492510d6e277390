"""
Fields: handlers for a part of an object. Kopf does not call them for changes of other parts. The
first handler gets the old and the new value of a field, also at the creation (without an old
value). The second handler gets the diff of the labels, with paths relative to the labels. The third
handler handles only one step, from one value to another. Type
``kubectl apply -f examples/obj.yaml``, then
``kubectl patch kopfexample kopf-example-1 --type merge -p '{"spec": {"duration": "5m"}}'``,
``kubectl label kopfexample kopf-example-1 somelabel- colour=red``, and change ``spec.field`` to
``draft``, then to ``published``. See which handlers Kopf calls for which change.
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
