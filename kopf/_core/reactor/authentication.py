"""
Logging in: by the handlers of the author, or by what the environment has.
"""
import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kopf._cogs.clients import kubeconfigs, serviceaccounts
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, ids, vaults
from kopf._core.engines import activities
from kopf._core.intents import causes, registries

logger = logging.getLogger(activities.__name__)


def make_login(
        registry: registries.OperatorRegistry,
        settings: configuration.OperatorSettings,
        run_activity: Callable[[causes.Activity], Awaitable[Mapping[ids.HandlerId, Any]]],
) -> vaults.LoginFn:
    """The way for the vault to get new credentials."""
    async def login() -> Mapping[str, credentials.Credentials]:
        logger.info("Initial authentication has been initiated.")
        found: Mapping[Any, Any]
        if registry.get_activity_handlers(causes.Activity.AUTHENTICATION):
            try:
                found = await run_activity(causes.Activity.AUTHENTICATION)
            except activities.ActivityError as e:
                raise credentials.LoginError(str(e)) from e
        else:
            found = await log_in_by_default(settings)
        if not found:
            raise credentials.LoginError(
                "Nothing to log in with: there is neither a kubeconfig ($KUBECONFIG or "
                "~/.kube/config) nor a service account of a pod. Make one, or declare "
                "a handler with @kopf.on.login().")
        logger.info("Initial authentication has finished.")
        return {str(key): value for key, value in found.items()}
    return login


async def log_in_by_default(
        settings: configuration.OperatorSettings,
) -> Mapping[str, credentials.Credentials]:
    """In a pod, by its service account; elsewhere, by the kubeconfig."""
    for login in (serviceaccounts.login_with_service_account, kubeconfigs.login_with_kubeconfig):
        # Some read files or run programs: not in the loop.
        info = await asyncio.to_thread(login, settings=settings)
        if info is not None:
            return {login.__name__: info}
    return {}
