"""
Rights of users of a sandbox.
"""


def make_rule(*resources, group='*'):
    return {'apiGroups': [group], 'resources': list(resources), 'verbs': ['list', 'watch']}


def make_role(*rules, user='limited', namespace=''):
    """Make a role and its binding for a user: in the namespace or, without one, in the cluster."""
    prefix = '' if namespace else 'Cluster'
    name = f'{user}-{namespace}'
    metadata = {'name': name, **({'namespace': namespace} if namespace else {})}
    api_version = 'rbac.authorization.k8s.io/v1'
    return [
        {'apiVersion': api_version, 'kind': f'{prefix}Role', 'metadata': metadata,
         'rules': list(rules)},
        {'apiVersion': api_version, 'kind': f'{prefix}RoleBinding', 'metadata': metadata,
         'subjects': [{'kind': 'User', 'name': user}],
         'roleRef': {'apiGroup': '', 'kind': f'{prefix}Role', 'name': name}}]
