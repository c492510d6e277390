"""A ConfigMap for each object, which another version of the operator would change."""

import os
from typing import Any

import kopf


@kopf.reconcile(os.environ['BENCH_GROUP'], os.environ['BENCH_PLURAL'], owns=['configmaps'])
def configure(name: str, spec: Any, **_: Any) -> Any:
    return [{
        'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
        'data': {'size': str(spec['size']), 'release': os.environ['BENCH_RELEASE']}}]
