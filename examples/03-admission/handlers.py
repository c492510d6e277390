"""
What is allowed into the cluster: fields are checked, and filled in where they are absent.

Locally, the API calls a server in this process; in a cluster, the server needs a service before it.
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
