"""
Subresources that speak a kind of their own, or do something: scales, evictions, bindings.
"""
import dataclasses

from kopf._cogs.structs import dicts
from kopf._kits.sandbox import encoding, objects, reading, wordings
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.patchrequests import Patch
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.scaling import SCALE, WORKLOADS, scale_of
from kopf._kits.sandbox.statuses import BadRequest, Conflict, Invalid, MethodNotAllowed, Obj
from kopf._kits.sandbox.writing import Writer, check_name

EVICTION = Kind(group='policy', version='v1', plural='evictions', kind='Eviction',
                storage_version='v1')
BINDING = Kind(group='', version='v1', plural='bindings', kind='Binding', storage_version='v1')

#: What needs something to run; nothing does.
RUNNING = ('attach', 'exec', 'log', 'portforward', 'proxy')


class Subresources:
    """Answers requests for subresources that are more than a part of their object."""

    def __init__(self, cluster: Cluster, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer

    def concern(self, request: Request) -> bool:
        return request.subresource in ('scale', 'eviction', 'binding', *RUNNING)

    async def answer(self, request: Request) -> tuple[int, bytes]:
        if request.subresource in RUNNING:
            self._cluster.get(request.kind, (request.namespace, request.name))
            if request.subresource == 'log':
                return 204, b''
            options = _connect_options(request)
            await self._writer.admission.mutate(request, 'CONNECT', options, None)
            await self._writer.admission.validate(request, 'CONNECT', options, None)
            raise BadRequest(f"pod {request.name} does not have a host assigned"
                             if request.kind.plural == 'pods' else "nothing runs in a sandbox")
        match request.subresource, request.verb:
            case 'scale', 'get':
                entry = self._cluster.get(request.kind, (request.namespace, request.name))
                return 200, self._shown(request, self._cluster.load(request.kind, entry))
            case 'scale', 'update' | 'patch':
                return await self._rescale(request)
            case 'eviction', 'create':
                return await self._evict(request)
            case 'binding', 'create':
                return await self._bind(request)
        raise MethodNotAllowed

    # Scales.

    async def _rescale(self, request: Request) -> tuple[int, bytes]:
        as_scale = dataclasses.replace(request, kind=SCALE)
        if request.verb == 'patch':
            patch = Patch(self._cluster, as_scale)
            result = await self._writer.change(
                request, lambda old: self._rescaled(request, old, patch.apply(
                    scale_of(request.kind, old))))
        else:
            request.check_options('UpdateOptions')
            obj = objects.decode_object(as_scale, self._cluster.kinds)
            result = await self._writer.change(
                request, lambda old: self._rescaled(request, old, obj))
        return 200, self._shown(request, result)

    def _rescaled(self, request: Request, obj: Obj, scale: Obj) -> Obj:
        if scale['metadata'].get('name'):
            check_name(request, scale)
        replicas = (scale.get('spec') or {}).get('replicas', 0)
        if not isinstance(replicas, int) or (replicas < 0 and not request.kind.custom):
            raise Invalid.on('autoscaling', 'Scale', request.name, [wordings.invalid(
                'spec.replicas', replicas, "must be greater than or equal to 0")])
        made: Obj = dicts.copy(obj)
        dicts.ensure(made, (request.kind.scaling or WORKLOADS).spec_path[1:], replicas)
        if scale['metadata'].get('resourceVersion'):
            made['metadata']['resourceVersion'] = scale['metadata']['resourceVersion']
        return made

    def _shown(self, request: Request, obj: Obj) -> bytes:
        raw = objects.encode_object(SCALE, scale_of(request.kind, obj))
        return reading.shaped(self._cluster, dataclasses.replace(request, kind=SCALE), raw)

    # Pods.

    async def _evict(self, request: Request) -> tuple[int, bytes]:
        eviction = objects.decode_object(
            dataclasses.replace(request, kind=EVICTION), self._cluster.kinds)
        options = eviction.get('deleteOptions') or {}
        await self._writer.delete(dataclasses.replace(
            request, verb='delete', subresource='', content_type='application/json',
            body=encoding.encode(options) if options else b''))
        return 201, _SUCCESS

    async def _bind(self, request: Request) -> tuple[int, bytes]:
        binding = objects.decode_object(
            dataclasses.replace(request, kind=BINDING), self._cluster.kinds)
        node = (binding.get('target') or {}).get('name')

        def bind(pod: Obj) -> Obj:
            if pod['spec'].get('nodeName'):
                raise Conflict(
                    f'Operation cannot be fulfilled on pods/binding "{request.name}": pod '
                    f'{request.name} is already assigned to node "{pod["spec"]["nodeName"]}"',
                    details={'name': request.name, 'kind': 'pods/binding'})
            return {**pod, 'spec': {**pod['spec'], 'nodeName': node}}

        await self._writer.change(dataclasses.replace(request, verb='update'), bind)
        return 201, _SUCCESS


def _connect_options(request: Request) -> Obj:
    names = {'exec': 'PodExecOptions', 'attach': 'PodAttachOptions',
             'portforward': 'PodPortForwardOptions', 'proxy': f'{request.kind.kind}ProxyOptions'}
    options: Obj = {'kind': names[request.subresource], 'apiVersion': 'v1'}
    for name, values in request.query.items():
        options[name] = {
            'command': list(values), 'ports': list(values), 'path': values[0],
            'container': values[0]}.get(name, values[0] in ('true', '1'))
    return options


_SUCCESS = encoding.encode({'kind': 'Status', 'apiVersion': 'v1', 'metadata': {},
                            'status': 'Success', 'code': 201})
