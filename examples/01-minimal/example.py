"""
A minimal operator. It welcomes every object, logs the changes of the object, and says good-bye.
Type ``kopf run -A examples/01-minimal/example.py``, and in another terminal,
``kubectl apply -f examples/obj.yaml``. Edit the file and apply it again, then type
``kubectl delete -f examples/obj.yaml``. See the messages in the operator's log each time;
``kubectl get kopfexamples`` shows the result of the first handler.
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
