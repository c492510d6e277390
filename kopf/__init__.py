"""
Kopf: a framework for Kubernetes operators in Python.

Everything that operators need is here: the decorators (`kopf.on` and others), the types
of handlers' arguments, the errors to raise, the settings, and the functions to run an operator.
What is in the modules with leading underscores can change at any time.
"""
import importlib
from typing import TYPE_CHECKING, Any

from kopf import lifecycles, on
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.configs.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)
from kopf._cogs.configs.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    ProgressRecord,
    ProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from kopf._cogs.helpers.typedefs import Logger
from kopf._cogs.helpers.versions import commit_id as __commit_id__
from kopf._cogs.helpers.versions import version as __version__
from kopf._cogs.helpers.versions import version_tuple as __version_tuple__
from kopf._cogs.structs.bodies import (
    Annotations,
    Body,
    BodyEssence,
    Labels,
    Meta,
    ObjectReference,
    OwnerReference,
    RawBody,
    RawEvent,
    RawEventType,
    Spec,
    Status,
    build_object_reference,
    build_owner_reference,
)
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, LoginError
from kopf._cogs.structs.dicts import FieldPath, FieldSpec
from kopf._cogs.structs.diffs import Diff, DiffItem, DiffOperation
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.indices import Index, Store
from kopf._cogs.structs.memos import Memo
from kopf._cogs.structs.offspring import Children
from kopf._cogs.structs.patches import Patch, PatchFn
from kopf._cogs.structs.references import EVERYTHING, Resource
from kopf._cogs.structs.reviews import (
    Headers,
    Operation,
    SSLPeer,
    UserInfo,
    WebhookClientConfig,
    WebhookClientConfigService,
    WebhookFn,
    WebhookServerProtocol,
)
from kopf._core.actions.lifecycles import get_default_lifecycle, set_default_lifecycle
from kopf._core.actions.loggers import LocalObjectLogger, LogFormat, ObjectLogger, configure
from kopf._core.intents.callbacks import all_, any_, none_, not_
from kopf._core.intents.causes import Reason
from kopf._core.intents.handlererrors import (
    AdmissionError,
    ErrorsMode,
    HandlerRetriesError,
    HandlerTimeoutError,
    PermanentError,
    TemporaryError,
)
from kopf._core.intents.handlers import ABSENT, PRESENT
from kopf._core.intents.registries import (
    OperatorRegistry,
    get_default_registry,
    set_default_registry,
)
from kopf._core.intents.stopping import (
    AsyncDaemonStopperChecker,
    DaemonStopped,
    DaemonStoppingReason,
    SyncDaemonStopperChecker,
)
from kopf._core.intents.typedargs import Misfit, MisfitError
from kopf._kits.hierarchies.adopting import (
    adjust_namespace,
    adopt,
    append_owner_reference,
    harmonize_naming,
    label,
    remove_owner_reference,
)
from kopf.on import daemon, index, reconcile, register, subhandler, timer

if TYPE_CHECKING:
    from kopf._cogs.logins.kubeconfigs import login_with_kubeconfig
    from kopf._cogs.logins.piggybacking import (
        login_via_async_client,
        login_via_client,
        login_via_pykube,
    )
    from kopf._cogs.logins.serviceaccounts import login_with_service_account
    from kopf._core.engines.reconciling.generating import generated
    from kopf._core.engines.reconciling.serversideapply import apply
    from kopf._kits.conditions import set_condition
    from kopf._kits.conversion.declaring import convert
    from kopf._kits.conversion.moves import Lossy, Move
    from kopf._kits.events import event, exception, info, warn
    from kopf._kits.external.declaring import External, external, trigger
    from kopf._kits.external.failures import NotSent, RetryAfter
    from kopf._kits.external.gates import Rate
    from kopf._kits.protecting import protected
    from kopf._kits.reading import get, list_
    from kopf._kits.running import operator, run, run_tasks, spawn_tasks
    from kopf._kits.subhandlers import execute
    from kopf._kits.typed.decoding import Live
    from kopf._kits.typed.kinds import crd
    from kopf._kits.typed.rights import needs
    from kopf._kits.typed.vocabulary import (
        CEL,
        Column,
        Condition,
        Conditions,
        ConfigMapKeyRef,
        DeclarationError,
        Embedded,
        Float,
        Immutable,
        IntOrString,
        ListMap,
        ListSet,
        Nullable,
        Pattern,
        Quantity,
        Scale,
        SecretKeyRef,
        Wire,
    )
    from kopf._kits.webhooks.detection import WebhookAutoServer
    from kopf._kits.webhooks.servers import (
        WebhookDockerDesktopServer,
        WebhookK3dServer,
        WebhookMinikubeServer,
        WebhookServer,
    )
    from kopf._kits.webhooks.services import WebhookServiceServer
    from kopf._kits.webhooks.tunnels import WebhookAutoTunnel, WebhookNgrokTunnel

# Operators need these names when they run, but not when their handlers are declared, tested, or
# typed; and their modules are the biggest part of all imports.
_LAZY = {name: module for module, names in {
    'kopf._cogs.logins.kubeconfigs': ['login_with_kubeconfig'],
    'kopf._cogs.logins.piggybacking': [
        'login_via_async_client', 'login_via_client', 'login_via_pykube'],
    'kopf._cogs.logins.serviceaccounts': ['login_with_service_account'],
    'kopf._core.engines.reconciling.serversideapply': ['apply'],
    'kopf._core.engines.reconciling.generating': ['generated'],
    'kopf._kits.conditions': ['set_condition'],
    'kopf._kits.conversion.declaring': ['convert'],
    'kopf._kits.conversion.moves': ['Lossy', 'Move'],
    'kopf._kits.events': ['event', 'exception', 'info', 'warn'],
    'kopf._kits.external.declaring': ['External', 'external', 'trigger'],
    'kopf._kits.external.failures': ['NotSent', 'RetryAfter'],
    'kopf._kits.external.gates': ['Rate'],
    'kopf._kits.protecting': ['protected'],
    'kopf._kits.reading': ['get', 'list_'],
    'kopf._kits.running': ['operator', 'run', 'run_tasks', 'spawn_tasks'],
    'kopf._kits.subhandlers': ['execute'],
    'kopf._kits.typed.decoding': ['Live'],
    'kopf._kits.typed.kinds': ['crd'],
    'kopf._kits.typed.rights': ['needs'],
    'kopf._kits.typed.vocabulary': [
        'CEL', 'Column', 'Condition', 'Conditions', 'ConfigMapKeyRef', 'DeclarationError',
        'Embedded', 'Float', 'Immutable', 'IntOrString', 'ListMap', 'ListSet', 'Nullable',
        'Pattern', 'Quantity', 'Scale', 'SecretKeyRef', 'Wire'],
    'kopf._kits.webhooks.detection': ['WebhookAutoServer'],
    'kopf._kits.webhooks.servers': [
        'WebhookDockerDesktopServer', 'WebhookK3dServer', 'WebhookMinikubeServer', 'WebhookServer'],
    'kopf._kits.webhooks.services': ['WebhookServiceServer'],
    'kopf._kits.webhooks.tunnels': ['WebhookAutoTunnel', 'WebhookNgrokTunnel'],
}.items() for name in names}

__all__ = [
    'ABSENT',
    'CEL',
    'EVERYTHING',
    'PRESENT',
    'AdmissionError',
    'AiohttpSession',
    'Annotations',
    'AnnotationsDiffBaseStorage',
    'AnnotationsProgressStorage',
    'AsyncDaemonStopperChecker',
    'Body',
    'BodyEssence',
    'Children',
    'Column',
    'Condition',
    'Conditions',
    'ConfigMapKeyRef',
    'ConnectionInfo',
    'DaemonStopped',
    'DaemonStoppingReason',
    'DeclarationError',
    'Diff',
    'DiffBaseStorage',
    'DiffItem',
    'DiffOperation',
    'Embedded',
    'ErrorsMode',
    'External',
    'FieldPath',
    'FieldSpec',
    'Float',
    'HandlerId',
    'HandlerRetriesError',
    'HandlerTimeoutError',
    'Headers',
    'Immutable',
    'Index',
    'IntOrString',
    'Labels',
    'ListMap',
    'ListSet',
    'Live',
    'LocalObjectLogger',
    'LogFormat',
    'Logger',
    'LoginError',
    'Lossy',
    'Memo',
    'Meta',
    'Misfit',
    'MisfitError',
    'Move',
    'MultiDiffBaseStorage',
    'MultiProgressStorage',
    'NotSent',
    'Nullable',
    'ObjectLogger',
    'ObjectReference',
    'Operation',
    'OperatorRegistry',
    'OperatorSettings',
    'OwnerReference',
    'Patch',
    'PatchFn',
    'Pattern',
    'PermanentError',
    'ProgressRecord',
    'ProgressStorage',
    'Quantity',
    'Rate',
    'RawBody',
    'RawEvent',
    'RawEventType',
    'Reason',
    'Resource',
    'RetryAfter',
    'SSLPeer',
    'Scale',
    'SecretKeyRef',
    'SmartProgressStorage',
    'Spec',
    'Status',
    'StatusDiffBaseStorage',
    'StatusProgressStorage',
    'Store',
    'SyncDaemonStopperChecker',
    'TemporaryError',
    'UserInfo',
    'WebhookAutoServer',
    'WebhookAutoTunnel',
    'WebhookClientConfig',
    'WebhookClientConfigService',
    'WebhookDockerDesktopServer',
    'WebhookFn',
    'WebhookK3dServer',
    'WebhookMinikubeServer',
    'WebhookNgrokTunnel',
    'WebhookServer',
    'WebhookServerProtocol',
    'WebhookServiceServer',
    'Wire',
    '__commit_id__',
    '__version__',
    '__version_tuple__',
    'adjust_namespace',
    'adopt',
    'all_',
    'any_',
    'append_owner_reference',
    'apply',
    'build_object_reference',
    'build_owner_reference',
    'configure',
    'convert',
    'crd',
    'daemon',
    'event',
    'exception',
    'execute',
    'external',
    'generated',
    'get',
    'get_default_lifecycle',
    'get_default_registry',
    'harmonize_naming',
    'index',
    'info',
    'label',
    'lifecycles',
    'list_',
    'login_via_async_client',
    'login_via_client',
    'login_via_pykube',
    'login_with_kubeconfig',
    'login_with_service_account',
    'needs',
    'none_',
    'not_',
    'on',
    'operator',
    'protected',
    'reconcile',
    'register',
    'remove_owner_reference',
    'run',
    'run_tasks',
    'set_condition',
    'set_default_lifecycle',
    'set_default_registry',
    'spawn_tasks',
    'subhandler',
    'timer',
    'trigger',
    'warn',
]


def __getattr__(name: str) -> Any:
    try:
        module = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
