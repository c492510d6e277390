"""
Timers: handlers that Kopf calls for every object at intervals. Here, ``spec.field`` is a text. The
first timer saves the text to the status, as editors do: when nobody has edited the text for two
seconds. Meanwhile, the second timer logs each second for how long the text has been unsaved. Both
timers run only while there are unsaved changes. If the API server refuses the status as invalid
(HTTP 422), the first timer has failed permanently for this object, because the same status would be
refused again; it runs again after a restart of the operator. Type
``kubectl apply -f examples/obj.yaml``, then change the field a few times in a row with
``kubectl edit kopfexample kopf-example-1``, and see in the log that the operator saves only the
last text.
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
