"""
Peering: one of several operators works, and the others wait. The operator with the highest priority
works. When it stops, the next operator continues. So a developer can take over from the operator in
the cluster for a while, and hand back with Ctrl-C. Type ``kubectl apply -f peering.yaml`` (in the
root of the repository), ``kubectl apply -f examples/14-peering/peering.yaml``, and start the
example in two terminals: with
``kopf run --namespace default --peering example --priority 1 examples/14-peering/example.py``, and
with ``--priority 2``. Then type ``kubectl apply -f examples/obj.yaml``, and see that only the
second operator handles the object. Stop the second operator, change the object, and see that the
first operator has taken over.
"""
import kopf


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
def tell(name, reason, logger, **_):
    logger.info(f"It is me who handles the {reason} of {name}.")
