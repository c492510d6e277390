"""
Errors and their consequences, shown by an order in a shop. A wrong order fails permanently. If an
item is sold out, the handler requests another attempt. The handler calls the courier three times,
because Kopf retries after arbitrary errors. If the thank-you letter fails, Kopf ignores the error.
Kopf retries each handler separately, and never repeats handlers that have succeeded. Type
``kubectl apply -f examples/obj.yaml``, and see the attempts in the log;
``kubectl describe kopfexamples`` shows them as events of the object.
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
