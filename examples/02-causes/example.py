"""
All the causes of handlers: a phone book in memory, where ``spec.field`` is the number. What is
created is written down, what is updated is corrected, what is deleted is struck out; and what was
there before the operator is written down as it resumes, for memory does not outlive a restart. Type
``kubectl apply -f examples/obj.yaml``, restart the operator, change the field, delete the object;
see in the log that the book is right all the time.
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
    BOOK.pop(name, None)  # it was never in there, if it was deleted before the operator started
    logger.info(f"Struck out: {name}; numbers left: {len(BOOK)}.")
