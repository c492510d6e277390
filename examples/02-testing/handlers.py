"""
Handlers that take hours: one is tried again every hour until it succeeds, one is called by time.

See the test beside: it is over in a second, for time is virtual there.
"""
import kopf


@kopf.on.create('kopfexamples')
def greet(spec, retry, **_):
    if retry < 3:
        raise kopf.TemporaryError("Nobody is at home.", delay=3600)
    return {'field': spec['field'], 'tries': retry + 1}


@kopf.timer('kopfexamples', interval=600)
def remind(memo, **_):
    memo.count = memo.get('count', 0) + 1
    return memo.count
