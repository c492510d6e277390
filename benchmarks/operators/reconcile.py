"""Three owned resources of each website, by levels: the same as in go-reconcile."""

from typing import Any

import kopf


@kopf.reconcile(
    'benchmarks.kopf.dev', 'v1', 'websites', owns=['configmaps', 'deployments.apps', 'services'])
async def website(name: str, spec: Any, children: Any, patch: kopf.Patch, **_: Any) -> Any:
    labels = {'website': name}
    page = name + spec.get('suffix', '')
    server = children.get('deployments', name)
    patch.status['ready'] = True
    patch.status['readyReplicas'] = server.status.get('readyReplicas', 0) if server else 0
    return [
        {
            'apiVersion': 'v1',
            'kind': 'ConfigMap',
            'metadata': {'name': page},
            'data': {'index.html': spec['text']},
        },
        {
            'apiVersion': 'apps/v1',
            'kind': 'Deployment',
            'spec': {
                'replicas': spec['replicas'],
                'selector': {'matchLabels': labels},
                'template': {
                    'metadata': {'labels': labels},
                    'spec': {
                        'containers': [{
                            'name': 'server',
                            'image': 'nginx',
                            'volumeMounts': [
                                {'name': 'page', 'mountPath': '/usr/share/nginx/html'}],
                        }],
                        'volumes': [{'name': 'page', 'configMap': {'name': page}}],
                    },
                },
            },
        },
        {
            'apiVersion': 'v1',
            'kind': 'Service',
            'spec': {
                'clusterIP': 'None',
                'selector': labels,
                'ports': [{'port': 80, 'protocol': 'TCP'}],
            },
        },
    ]
