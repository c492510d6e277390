"""The least that an operator can be: it says what happens to the objects."""
import kopf


@kopf.on.create('kopfexamples')
def create_fn(spec, name, **_):
    print(f"And here we are! {name} is created, for {spec.get('duration')}.")
    return {'message': 'hello'}


@kopf.on.update('kopfexamples', field='spec')
def update_fn(name, diff, logger, **_):
    for operation, field, old, new in diff:
        logger.info(f"{'.'.join(field)} of {name}: {operation} from {old!r} to {new!r}.")


@kopf.on.delete('kopfexamples')
def delete_fn(name, **_):
    print(f"Good-bye, {name}.")
