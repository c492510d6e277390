"""
Owned resources by levels: one function returns the config map, the deployment, and the service of a
homepage as they should be now. Kopf creates and changes the objects, restores what others delete or
edit, and deletes what the function does not return any more. The function also reports in a
condition whether the homepage is available; Kopf adds the condition ``Ready`` and its companions.
Type ``kubectl apply -f examples/20-reconcile/crd.yaml``, ``kubectl wait --for=condition=Established
crd/homepages.example.com``, and ``kopf run -A examples/20-reconcile/example.py``; in another
terminal, ``kubectl apply -f examples/20-reconcile/obj.yaml``, and
``kubectl get homepages,configmaps,deployments,services``. Delete the service, or edit the config
map, and see that both are restored. Type ``kubectl patch homepage hello --type merge -p
'{"spec": {"public": false}}'``, and see that the service disappears; delete the homepage, and see
that all its objects disappear. With 04-owned-resources, see the same by edges.
"""
import kopf


@kopf.reconcile(
    'homepages', owns=['configmaps', 'deployments.apps', 'services'], conditions=True)
def homepage(name, spec, children, patch, **_):
    selector = {'homepage': name}
    yield {
        'apiVersion': 'v1',
        'kind': 'ConfigMap',
        'metadata': {'name': name},
        'data': {'index.html': f"<h1>{spec['text']}</h1>"},
    }
    yield {
        'apiVersion': 'apps/v1',
        'kind': 'Deployment',
        'metadata': {'name': name},
        'spec': {
            'replicas': spec['replicas'],
            'selector': {'matchLabels': selector},
            'template': {
                'metadata': {'labels': selector},
                'spec': {
                    'containers': [{
                        'name': 'server',
                        'image': 'nginx',
                        'volumeMounts': [{'name': 'page', 'mountPath': '/usr/share/nginx/html'}],
                    }],
                    'volumes': [{'name': 'page', 'configMap': {'name': name}}],
                },
            },
        },
    }
    if spec['public']:
        yield {
            'apiVersion': 'v1',
            'kind': 'Service',
            'metadata': {'name': name},
            'spec': {'selector': selector, 'ports': [{'port': 80, 'protocol': 'TCP'}]},
        }

    server = children.get('deployments', name)
    ready = server.status.get('readyReplicas', 0) if server else 0
    patch.status['readyReplicas'] = ready
    if ready >= spec['replicas']:
        kopf.set_condition(patch, 'Available', True, 'AllServersRun')
    else:
        kopf.set_condition(patch, 'Available', False, 'ServersStart', f"{ready} servers run.")
