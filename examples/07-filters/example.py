"""
Filters: they select objects by labels and annotations (with values, present, absent, or with a
function), by the value of a field, by a function of the whole object, or by several of these. Kopf
writes nothing on objects that no filter selects. Type
``kubectl apply -f examples/07-filters/objs.yaml``, and see in the log which handlers handle which
objects.
"""
import kopf


def is_urgent(value, **_):
    return value in ('high', 'critical')


def is_long(spec, **_):
    return len(spec.get('items', [])) > 2


def is_on_hold(labels, **_):
    return labels.get('hold') == 'yes'


@kopf.on.create('kopfexamples', labels={'priority': is_urgent})
def wake_somebody_up(name, logger, **_):
    logger.info(f"Somebody is awake because of {name}.")


@kopf.on.create('kopfexamples', labels={'priority': kopf.PRESENT},
                annotations={'assignee': kopf.ABSENT})
def assign(name, patch, logger, **_):
    patch.metadata.annotations['assignee'] = 'the-next-one'
    logger.info(f"{name} is assigned.")


@kopf.on.create('kopfexamples', field='spec.field', value='question')
def answer(name, logger, **_):
    logger.info(f"{name} is answered.")


@kopf.on.create('kopfexamples', when=kopf.all_([is_long, kopf.not_(is_on_hold)]))
def split(name, logger, **_):
    logger.info(f"{name} is too much at once.")
