"""
Tests of an operator. The handlers here take hours: one is tried again every hour until it succeeds,
one is called every ten minutes. Their tests are beside, in ``test_example.py``: one of a handler
alone, and one of the operator on a sandbox, which takes a second, for the time is virtual there.
Type ``pytest examples/17-testing``, and see them pass; ``KOPF_TEST_API=~/.kube/config`` before it
runs them on that cluster, but in hours.
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
