"""
Tests of an operator. The handlers here take hours: Kopf retries the first handler every hour until
the handler succeeds, and calls the second handler every ten minutes. The tests are in
``test_example.py`` in the same folder. The first test runs the operator on a sandbox, and takes a
second, because its time is virtual. The second test calls a handler alone. Type
``pytest examples/17-testing``, and see that they pass. With ``KOPF_TEST_API=~/.kube/config``, the
same tests run on that cluster, but take hours. The count of the timer is only in memory, and the
status needs it: of the faults of ``kopf.testing.explore``, it does not survive ``crash``,
``stale``, ``stop``, and ``handover``.
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
