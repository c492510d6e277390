"""
Peering: of several operators, one works, and the others wait. Whoever has the highest priority
works; when it is gone, the next one goes on. So a developer can take over from the operator in the
cluster for a while, and hand back by Ctrl-C. Type ``kubectl apply -f peering.yaml`` (of the root of
the repository), ``kubectl apply -f examples/14-peering/peering.yaml``, and start the example in two
terminals, with ``kopf run --namespace default --peering example --priority 1
examples/14-peering/example.py``, and the same with ``--priority 2``. Then type ``kubectl apply -f
examples/obj.yaml``, and see that only the second one says so; stop it, change the object, and see
that the first one has taken over.
"""
import kopf


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples')
def tell(name, reason, logger, **_):
    logger.info(f"It is me who handles the {reason} of {name}.")
