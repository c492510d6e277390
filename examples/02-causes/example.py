"""
All causes of handlers, shown by a phone book in memory, where ``spec.field`` is the number. The
operator adds created objects, corrects updated objects, and removes deleted objects. Memory does
not survive a restart, so the operator adds existing objects again when Kopf resumes them. Type
``kubectl apply -f examples/obj.yaml``, restart the operator, change the field, and delete the
object; see in the log that the book is correct all the time.
"""
import kopf

BOOK: dict[str, str] = {}


@kopf.on.create('kopfexamples')
@kopf.on.resume('kopfexamples')
def write_down(name, spec, reason, logger, **_):
    BOOK[name] = spec.get('field', 'unknown')
    logger.info(f"Written down on {reason}: {name} has {BOOK[name]}.")


@kopf.on.update('kopfexamples', field='spec.field')
def correct(name, old, new, logger, **_):
    BOOK[name] = new or 'unknown'
    logger.info(f"Corrected: {name} has {BOOK[name]}, it was {old}.")


@kopf.on.delete('kopfexamples')
def strike_out(name, logger, **_):
    BOOK.pop(name, None)  # absent if somebody deleted the object before the operator started
    logger.info(f"Struck out: {name}; numbers left: {len(BOOK)}.")
