"""
Timers: handlers that are called by time, for every object. Here, ``spec.field`` is a text, which is
saved to the status as editors do it: once nobody has edited it for two seconds. Meanwhile, another
timer tells each second how long it has not been saved. Both are there only while there is something
to save. Type ``kubectl apply -f examples/obj.yaml``, then change the field a few times in a row by
``kubectl edit kopfexample kopf-example-1``, and see in the log that only the last text is saved.
"""
import kopf


def is_unsaved(spec, status, **_):
    return spec.get('field') != status.get('save', {}).get('text')


@kopf.timer('kopfexamples', idle=2, when=is_unsaved)
def save(spec, memo, logger, **_):
    memo.seconds = 0
    logger.info(f"Saved: {spec.get('field')}")
    return {'text': spec.get('field')}


@kopf.timer('kopfexamples', interval=1, sharp=True, initial_delay=1, when=is_unsaved)
def remind(memo, logger, **_):
    memo.seconds = memo.get('seconds', 0) + 1
    logger.info(f"Not saved for {memo.seconds} s.")
