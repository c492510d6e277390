"""
Admission: handlers that check objects before the API server stores them. A validating handler
refuses a field that is not a string, and warns if the field is absent. A mutating handler adds the
default duration. The API server calls the operator before it stores anything, so users see the
response where they typed the command. On your own machine, the API server must reach the operator:
this works with a sandbox (``kopf run --sandbox``), and with local clusters such as minikube (see
``kopf.WebhookAutoServer``). In a cluster, the server needs a service. Type
``kubectl apply -f examples/obj.yaml``, then once more with ``field: 123``, and see the refusal.
Delete the object, create it without a duration, and see its duration. The tests are in
``test_example.py`` in the same folder.
"""
import kopf


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1')
    settings.admission.managed = 'examples.kopf.dev'


@kopf.on.validate('kopfexamples', id='field-is-text')
def check(spec, warnings, **_):
    if not isinstance(spec.get('field', ''), str):
        raise kopf.AdmissionError("spec.field must be a text.", code=400)
    if 'field' not in spec:
        warnings.append("spec.field is not there.")


@kopf.on.mutate('kopfexamples', id='duration-is-there')
def complete(spec, patch, **_):
    if 'duration' not in spec:
        patch.spec['duration'] = '1m'
