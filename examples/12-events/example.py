"""
Events, of both sorts. A handler of raw events sees all that happens to pods, without changing
anything on them: no annotations, no finalizers; errors are not retried, as there is a next event.
What it finds worth telling, it posts as events that ``kubectl describe`` and ``kubectl events``
show. Type ``kubectl apply -f examples/12-events/pod.yaml``, and ``kubectl describe pod gambler`` in
ten seconds; see there whether it has won or lost.
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
