"""
Watch events and Kubernetes events. A handler of watch events sees everything that happens to pods,
and changes nothing on them: no annotations, no finalizers. Kopf does not retry this handler after
errors, because there will be a next event. The handler posts Kubernetes events, which
``kubectl describe`` and ``kubectl events`` show. Type
``kubectl apply -f examples/12-events/pod.yaml``, and ``kubectl describe pod gambler`` after ten
seconds; see whether the pod has won or lost. ``kopf.testing.explore`` does not try its faults, as
Kubernetes events are its only writes, and can always differ. After a restart, the memos are empty,
and so pods that have won or lost get the same event again.
"""
import kopf


@kopf.on.event('pods')
def follow(type, body, status, memo, **_):
    phase = status.get('phase')
    if type != 'DELETED' and phase != memo.get('phase'):
        if phase == 'Succeeded':
            kopf.info(body, reason='Won', message="The pod has won.")
        elif phase == 'Failed':
            kopf.warn(body, reason='Lost', message="The pod has lost.")
        memo.phase = phase
