"""
Timers: handlers that are called by time, for every object. One is called every second, on the
second, and tells how long the object has not been saved; one is called once the object has been
left alone for two seconds, and saves what is in ``spec.field``, as editors do. Type ``kubectl apply
-f examples/obj.yaml``, then change the field a few times in a row with ``kubectl edit kopfexample
kopf-example-1``, and see that only the last one is saved to the status.
"""
import kopf


@kopf.on.event('kopfexamples')
def notice(spec, status, memo, **_):
    if spec.get('field') == status.get('save', {}).get('field'):
        memo.unsaved = 0


@kopf.timer('kopfexamples', interval=1, sharp=True)
def count(memo, logger, **_):
    memo.unsaved = memo.get('unsaved', 0) + 1
    logger.info(f"Not saved for {memo.unsaved} seconds.")


@kopf.timer('kopfexamples', idle=2)
def save(spec, logger, **_):
    logger.info(f"Saved: {spec.get('field')}")
    return {'field': spec.get('field')}
