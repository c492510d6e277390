import pytest

CRD = {
    'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
    'metadata': {'name': 'kopfexamples.kopf.dev'},
    'spec': {
        'group': 'kopf.dev', 'scope': 'Namespaced',
        'names': {'kind': 'KopfExample', 'plural': 'kopfexamples', 'singular': 'kopfexample'},
        'versions': [{
            'name': 'v1', 'served': True, 'storage': True, 'schema': {'openAPIV3Schema': {
                'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}],
    },
}


@pytest.fixture()
def crd():
    """The kind of the examples."""
    return CRD


@pytest.fixture()
def script(tmp_path):
    """Write a script of handlers; returns its path."""
    def write(text, name='handlers.py'):
        path = tmp_path / name
        path.write_text(f'import kopf\n{text}')
        return str(path)
    return write
