"""
Rights: what each feature of the framework must be allowed to do, and what handlers declare to need.

The table `FEATURES` is the only place that says so: the roles are made of it (see `granting`).
"""
import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kopf._cogs.structs import references

FnT = TypeVar('FnT', bound=Callable[..., object])

DECLARED = '__kopf_needs__'
"""The attribute of functions with what `needs` has declared."""


class Place(enum.Enum):
    """Where a right is needed."""
    SERVED = "served namespaces"
    """The whole cluster, if all namespaces are served, or if the resource is cluster-scoped."""
    CLUSTER = "cluster"
    DEFAULT = "`default`"
    LEASES = "namespace of the Leases"
    SERVICE = "namespace of the Service"


@dataclasses.dataclass(frozen=True)
class Feature:
    """
    What a feature needs: the verbs for a resource, with its group if it is not the core API.

    In the resource, ``PLURAL`` stands for the resource that the feature is used with. ``named``
    features need the verbs for one object only.
    """
    resource: str
    verbs: tuple[str, ...]
    place: Place = Place.SERVED
    named: bool = False


_LEASES = 'leases.coordination.k8s.io'
_WEBHOOKS = 'validatingwebhookconfigurations.admissionregistration.k8s.io'
_CRDS = 'customresourcedefinitions.apiextensions.k8s.io'

FEATURES: Mapping[str, Feature] = {
    'watching': Feature('PLURAL', ('list', 'watch')),
    'changing': Feature('PLURAL', ('patch',)),
    'status': Feature('PLURAL/status', ('patch',)),
    'owning': Feature('PLURAL', ('list', 'watch', 'create', 'patch', 'delete')),
    'blocking': Feature('PLURAL/finalizers', ('update',)),
    'using': Feature('PLURAL', ('list', 'watch')),
    'posting': Feature('events', ('create',)),
    'posting_elsewhere': Feature('events', ('create',), Place.DEFAULT),
    'peering': Feature('clusterkopfpeerings.kopf.dev', ('list', 'watch', 'patch'), named=True),
    'lease_creation': Feature(_LEASES, ('create',), Place.LEASES),
    'lease': Feature(_LEASES, ('get', 'watch', 'update'), Place.LEASES, named=True),
    'shards': Feature(_LEASES, ('get', 'list', 'create', 'update', 'delete'), Place.LEASES),
    'webhook_creation': Feature(_WEBHOOKS, ('create',), Place.CLUSTER),
    'webhooks': Feature(_WEBHOOKS, ('patch',), Place.CLUSTER, named=True),
    'certificate_creation': Feature('secrets', ('create',), Place.SERVICE),
    'certificates': Feature('secrets', ('list', 'watch', 'patch'), Place.SERVICE, named=True),
    'conversions': Feature(_CRDS, ('patch',), Place.CLUSTER, named=True),
    'converted': Feature(_CRDS, ('list',), Place.CLUSTER),
    'definitions': Feature(_CRDS, ('list', 'watch'), Place.CLUSTER),
    'namespaces': Feature('namespaces', ('list', 'watch'), Place.CLUSTER),
}
"""
All features that need rights, in the order of the table in "Print the least roles" of the
documentation, which says what they are for, and who uses them.
"""


@dataclasses.dataclass(frozen=True)
class Right:
    """
    One verb for one resource. ``resource`` includes the subresource: ``pods/log``.

    An empty ``name`` means objects of any name. The namespace is None for all namespaces and for
    cluster-scoped resources, and empty for the namespace that the operator is in.
    """
    group: str
    resource: str
    verb: str
    name: str = ''
    namespace: str | None = None

    def __str__(self) -> str:
        plural, slash, part = self.resource.partition('/')
        text = f"{self.verb} {plural}{'.' if self.group else ''}{self.group}{slash}{part}"
        text += f" {self.name!r}" if self.name else ""
        if self.namespace == '':
            return f"{text} in the operator's namespace"
        return text if self.namespace is None else f"{text} in {self.namespace!r}"

    def move_to(self, home: str) -> 'Right':
        """Name the namespace that the operator is in, if that is the namespace of the right."""
        return self if self.namespace != '' else dataclasses.replace(self, namespace=home)

    def covers(self, other: 'Right') -> bool:
        """Whether this right includes the other one. Any namespace can be that of the operator."""
        part = other.resource.partition('/')[2]
        return (
            self.group in ('*', other.group) and self.verb in ('*', other.verb)
            and self.resource in ('*', other.resource, f'*/{part}' if part else '*')
            and self.name in ('', other.name)
            and (other.namespace == '' or self.namespace in (None, other.namespace)))


@dataclasses.dataclass(frozen=True)
class Need:
    """
    What the own calls of a handler need. The subresource is empty for the objects themselves, and
    the only name is empty if it is for all objects.
    """
    selector: references.Selector
    subresource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ('',)


def needs(
        resource: str | tuple[str, str] | tuple[str, str, str], /, *, verbs: Collection[str],
        names: Collection[str] | None = None,
) -> Callable[[FnT], FnT]:
    """
    Declare what the own requests of a handler need, for the roles that ``kopf rbac`` prints.

    It has no effect on the handler. Use it for what Kopf does not do itself: requests of other
    clients, `kopf.apply`, owner references by `kopf.adopt`. It can be repeated.

    ::

        @kopf.on.create('websites')
        @kopf.needs('configmaps', verbs=['create'])
        def created(**_): ...

    See "Print the least roles" in the documentation.

    :param resource: the resource, as in ``owns=`` of `kopf.reconcile`, maybe with a subresource:
        ``'secrets'``, ``'deployments.apps/scale'``.
    :param verbs: the verbs of Kubernetes: ``['get', 'create']``.
    :param names: the only objects that are needed. Default: all.
    :raises TypeError: if the verbs or names are no collection of strings, or if it names no
        resource.
    """
    if isinstance(verbs, str) or not verbs or not all(isinstance(verb, str) for verb in verbs):
        raise TypeError(f"verbs= must be a collection of verbs, e.g. ['get'], not {verbs!r}.")
    if isinstance(names, str):
        raise TypeError(f"names= must be a collection of names, e.g. [{names!r}].")
    parts = (resource,) if isinstance(resource, str) else resource
    plural, _, subresource = parts[-1].partition('/')
    selector = references.Selector(*(*parts[:-1], plural))
    need = Need(
        selector, subresource, tuple(verbs), ('',) if names is None else tuple(map(str, names)))

    def decorate(fn: FnT) -> FnT:
        setattr(fn, DECLARED, (need, *get_needs(fn)))
        return fn
    return decorate


def get_needs(fn: Callable[..., object]) -> tuple[Need, ...]:
    """Get what is declared for the function, in the order of the source."""
    return getattr(fn, DECLARED, ())
