"""
Definitions of kinds with any content, for tests that need some kind.
"""


def make_crd(kind, plural, *, scope='Namespaced'):
    """Make the definition of a kind of ``example.com/v1``, with the status as a subresource."""
    return {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'CustomResourceDefinition',
        'metadata': {'name': f'{plural}.example.com'},
        'spec': {
            'group': 'example.com', 'scope': scope,
            'names': {'plural': plural, 'singular': kind.lower(), 'kind': kind,
                      'listKind': f'{kind}List'},
            'versions': [{
                'name': 'v1', 'served': True, 'storage': True, 'subresources': {'status': {}},
                'schema': {'openAPIV3Schema': {
                    'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}}}]}}
