"""
Admission: what is let into the cluster. A validating handler refuses a field that is no text, and
warns if there is none; a mutating one fills in what is left out. The API calls the operator before
anything is stored, so the answer is seen where the command was typed. On one's own machine, the
API has to reach this one: it does on a sandbox (``kopf run --sandbox``) or in minikube and the like
(see ``kopf.WebhookAutoServer``); in a cluster, the server needs a service before it. Type ``kubectl
apply -f examples/obj.yaml``, then once more with ``field: 123``, and see it refused; delete the
object and create it without a duration, and see which one it has. The tests are beside, in
``test_example.py``.
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
