"""
Errors, and what becomes of them, on the way of an order through a shop. A wrong order fails for
good; for what is sold out, the handler asks for another try; a courier that does not answer is
called three times, as arbitrary errors are retried; and if the thank-you letter fails, nobody
minds. Each handler is retried on its own: those that have succeeded are never repeated. Type
``kubectl apply -f examples/obj.yaml``, and see the tries in the log; ``kubectl describe
kopfexamples`` shows them as events of the object.
"""
import kopf


@kopf.on.create('kopfexamples')
def check_order(spec, **_):
    if not spec.get('items'):
        raise kopf.PermanentError("There is nothing in the order.")


@kopf.on.create('kopfexamples', timeout=3600)
def fetch_from_stock(spec, retry, **_):
    if retry < 2:
        raise kopf.TemporaryError("It is sold out, and comes in soon.", delay=0.5)
    return {'fetched': len(spec.get('items', [])), 'tries': retry + 1}


@kopf.on.create('kopfexamples', retries=3, backoff=0.5)
def call_courier(**_):
    raise ConnectionError("Nobody answers the phone.")


@kopf.on.create('kopfexamples', errors=kopf.ErrorsMode.IGNORED)
def thank_customer(**_):
    raise RuntimeError("The printer is out of paper.")
