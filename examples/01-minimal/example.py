"""
The least that an operator can be: it welcomes every object, tells what is changed in it, and says
good-bye. Type ``kopf run examples/01-minimal/example.py``, and ``kubectl apply -f
examples/obj.yaml`` in another terminal. Edit the file and apply it again, then ``kubectl delete -f
examples/obj.yaml``. See it said in the operator's log each time; ``kubectl get kopfexamples`` shows
what the first handler has returned.
"""
import kopf


@kopf.on.create('kopfexamples')
def create_fn(spec, name, **_):
    print(f"Welcome, {name}! You stay for {spec.get('duration')}.")
    return {'message': 'hello'}


@kopf.on.update('kopfexamples', field='spec')
def update_fn(name, diff, logger, **_):
    for operation, field, old, new in diff:
        logger.info(f"{'.'.join(field)} of {name}: {operation} from {old!r} to {new!r}.")


@kopf.on.delete('kopfexamples')
def delete_fn(name, **_):
    print(f"Good-bye, {name}.")
