"""
Users of a sandbox with few rights.
"""


def add_user(cluster, *, resources=(), cluster_resources=()):
    """
    Add a user who can list and watch these resources in the default namespace, and others in the
    cluster; return the token of the user. The cluster is a sandbox in a thread.
    """
    token = cluster.sandbox.add_user('limited', lambda *_: None)
    for prefix, names, place in (
            ('Cluster', cluster_resources, {}), ('', resources, {'namespace': 'default'})):
        metadata = {'name': 'limited', **place}
        cluster.client.create({
            'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': f'{prefix}Role',
            'metadata': metadata, 'rules': [{
                'apiGroups': ['*'], 'resources': list(names), 'verbs': ['list', 'watch']}]})
        cluster.client.create({
            'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': f'{prefix}RoleBinding',
            'metadata': metadata, 'subjects': [{'kind': 'User', 'name': 'limited'}],
            'roleRef': {'apiGroup': '', 'kind': f'{prefix}Role', 'name': 'limited'}})
    return token
