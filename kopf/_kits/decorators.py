"""
The names of the decorators that have declared handlers, as people know them.
"""
from collections.abc import Mapping

from kopf._core.intents import handlers

NAMES: Mapping[type[handlers.Handler], str] = {
    handlers.IndexingHandler: 'index',
    handlers.WatchingHandler: 'event',
    handlers.DaemonHandler: 'daemon',
    handlers.TimerHandler: 'timer',
    handlers.ReconcilingHandler: 'reconcile',
    handlers.ExternalHandler: 'external',
    handlers.CallHandler: 'external',
}
"""Those that do not depend on the options."""


def name_decorator(handler: handlers.ResourceHandler) -> str:
    """Get the name of the decorator that has declared the handler, e.g. ``create`` or ``timer``."""
    match handler:
        case handlers.ChangingHandler(reason=None):
            return 'resume' if handler.initial else 'field'
        case handlers.WebhookHandler():
            return handler.reason.removesuffix('ing') + 'e'
        case handlers.ChangingHandler():
            return str(handler.reason)
    return NAMES[type(handler)]
