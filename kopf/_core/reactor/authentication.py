"""
Authentication: credentials come from the login handlers, or, without any, from the environment.

All login handlers are called concurrently, each with its own retries and timeouts. The credentials
of all successful handlers are used. A handler that returns nothing or fails permanently does no
harm while some other handler succeeds. Once there are credentials, the handlers that still run get
some more time (`PATIENCE`); then they are cancelled, so that a hanging login does not block the
operator.
"""
import asyncio
import functools
import inspect
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

from kopf._cogs.clients import vaults
from kopf._cogs.logins import kubeconfigs, piggybacking, serviceaccounts
from kopf._cogs.structs import credentials, ids
from kopf._core.engines import activities
from kopf._core.intents import causes, handlererrors, handlers, registries

logger = logging.getLogger(activities.__name__)

PATIENCE = 30.0
"""
How long (seconds) to wait for the remaining handlers once there are credentials.

The time starts again with each handler that finishes.
"""

SLOW = 60.0
"""How often (seconds) the log names the running handlers as long as there are no credentials."""

CANCELLATION_TIMEOUT = 1.0
"""How long (seconds) the cancelled handlers have to end."""

ALTERNATIVE = "To try an operator without a cluster: kopf run --sandbox"

RunFn = Callable[[registries.OperatorRegistry], Awaitable[Mapping[ids.HandlerId, Any]]]
"""Runs the login handlers of a registry until they succeed or fail; returns their results."""

_AnyLoginFn = Callable[..., Any]


def prepare(vault: vaults.Vault, *, registry: registries.OperatorRegistry, run: RunFn) -> None:
    """
    Make the vault retrieve credentials with the login handlers, unless it has a login function
    already.

    A vault can come with credentials (``kopf.run(vault=…)``). Then, if no login handlers are
    declared, the environment is not used: its credentials can be for another cluster.
    """
    declared = registry.get_activity_handlers(causes.Activity.AUTHENTICATION)
    names = itertools.chain(["Initial authentication"], itertools.repeat("Re-authentication"))
    if vault.login is None and (declared or vault.is_empty):
        vault.log_in_by(lambda: _log_in(vault, declared, run, next(names)))
    is_default = vault.is_empty and not declared
    vault.advise(f"Is the cluster running? {ALTERNATIVE}" if (
        is_default and not _is_pod()) else None)
    vault.follow(lambda item: logger.info(
        f"Connected to {credentials.strip_userinfo(item.server)}"
        f"{_describe_origin() if is_default else ''}."))


async def _log_in(
        vault: vaults.Vault,
        declared: Collection[handlers.ActivityHandler],
        run: RunFn,
        what: str,
) -> Mapping[str, credentials.Credentials]:
    """
    Retrieve all available credentials, by the ids of the handlers that have returned them.

    :raises LoginError: if all declared handlers have failed permanently; or if no handlers are
        declared, the environment has no credentials, and there have never been any that worked.
    """
    logger.debug(f"{what} has been initiated.")
    found, failures = await (_call_all(declared, run) if declared else _call_defaults(run))
    if found:
        logger.debug(f"{what} has finished.")
        return found
    if not declared and not vault.proven:
        raise _make_error(failures)
    logger.warning(f"{what} has failed: no credentials were retrieved from the login handlers.")
    if declared and len(failures) == len(declared):
        raise credentials.LoginError(
            f"All login handlers have failed: {'; '.join(failures.values())}")
    return {}


async def _call_defaults(run: RunFn) -> tuple[dict[str, credentials.Credentials], dict[str, str]]:
    """
    Log in with the loaded libraries; or else with Kopf itself; or else with installed libraries.

    The import of the libraries would take more time and memory than everything else at the start.
    The official client is configured even if it is imported later.
    """
    if not _is_pod():
        try:
            if not kubeconfigs.verify():
                return {}, {}
        except credentials.LoginError as e:
            return {}, {'kubeconfig': str(e)}  # all libraries would complain, each in its own way
    found: dict[str, credentials.Credentials] = {}
    failures: dict[str, str] = {}
    for fns in (
        _find_libraries(piggybacking.is_loaded), _find_files(),
        _find_libraries(piggybacking.is_installed),
    ):
        found, more = await _call_all([_make_handler(fn) for fn in fns], run)
        failures = {**failures, **more}
        if found:
            break
    piggybacking.configure_on_import()
    return found, failures


def _describe_origin() -> str:
    """Say where the default login has found the credentials, if that is known."""
    if _is_pod():
        return " (service account)"
    try:
        context = kubeconfigs.verify()
    except credentials.LoginError:
        context = None  # the kubeconfigs have changed since the login
    return f" (context {context})" if context else ""


def _make_error(failures: Mapping[str, str]) -> credentials.LoginError:
    """Make the error of a login without any credentials."""
    reasons = [text.removeprefix(f'{id_}: ').rstrip('.') for id_, text in failures.items()]
    return credentials.LoginError("Nothing to log in with: " + (
        f"{'; '.join(dict.fromkeys(reasons))}." if reasons else
        f"there is neither a kubeconfig ({kubeconfigs.describe()}) nor a service account of a pod. "
        f"Make one, or declare a handler with @kopf.on.login(). {ALTERNATIVE}"))


def _make_handler(fn: _AnyLoginFn) -> handlers.ActivityHandler:
    return handlers.ActivityHandler(
        id=ids.HandlerId(fn.__name__), fn=_make_final(fn),
        errors=handlererrors.ErrorsMode.PERMANENT,
        activity=causes.Activity.AUTHENTICATION, success_level=logging.DEBUG)


def _find_libraries(is_available: Callable[[str], bool]) -> Iterator[_AnyLoginFn]:
    """Find the logins by the client libraries: pykube-ng, and one of the two official clients."""
    if is_available('pykube'):
        yield piggybacking.login_via_pykube
    if is_available('kubernetes'):
        yield piggybacking.login_via_client
    elif is_available('kubernetes_asyncio'):
        yield piggybacking.login_via_async_client


def _find_files() -> Iterator[_AnyLoginFn]:
    """
    Find the login of this environment: in a pod, the service account; elsewhere, the kubeconfig.
    """
    yield (serviceaccounts.login_with_service_account if _is_pod()
           else kubeconfigs.login_with_kubeconfig)


def _is_pod() -> bool:
    return os.path.exists(serviceaccounts.get_token_path())


def _make_final(fn: _AnyLoginFn) -> _AnyLoginFn:
    """
    Turn login errors into permanent ones.

    A retry would read the same files again. And the log should not have a traceback of Kopf itself.
    """
    @functools.wraps(fn)
    def call(**kwargs: Any) -> Any:
        try:
            return fn(**kwargs)
        except credentials.LoginError as e:
            raise handlererrors.PermanentError(str(e)) from None

    @functools.wraps(fn)
    async def call_async(**kwargs: Any) -> Any:
        try:
            return await fn(**kwargs)
        except credentials.LoginError as e:
            raise handlererrors.PermanentError(str(e)) from None

    return call_async if inspect.iscoroutinefunction(fn) else call


async def _call_all(
        called: Collection[handlers.ActivityHandler], run: RunFn,
) -> tuple[dict[str, credentials.Credentials], dict[str, str]]:
    """Call the handlers concurrently; return the credentials and the failures by handler ids."""
    found: dict[str, credentials.Credentials] = {}
    failures: dict[str, str] = {}
    tasks = {asyncio.create_task(_call(handler, run)): handler.id for handler in called}
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=PATIENCE if found else SLOW, return_when=asyncio.FIRST_COMPLETED)
            names = ', '.join(repr(tasks[task]) for task in pending)
            if not done and found:
                logger.warning(f"Not waiting any more for the login by {names}: there are others.")
                break
            if not done:
                logger.warning(f"The login by {names} takes long, and is still waited for.")
            for task in done:
                try:
                    found.update(task.result())
                except activities.ActivityError as e:
                    failures.update({
                        id_: f"{id_}: {outcome.message}" for id_, outcome in e.outcomes.items()})
                except credentials.LoginError as e:
                    logger.error(f"Activity {tasks[task]!r} failed permanently: {e}")
                    failures[tasks[task]] = f"{tasks[task]}: {e}"
    finally:
        for task in pending:
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        if pending:  # a synchronous handler runs in a thread, which cannot be stopped
            await asyncio.wait(pending, timeout=CANCELLATION_TIMEOUT)
    return found, failures


async def _call(
        handler: handlers.ActivityHandler, run: RunFn,
) -> Mapping[str, credentials.Credentials]:
    registry = registries.OperatorRegistry()
    registry._activities.append(handler)
    results = await run(registry)
    for result in results.values():
        if not isinstance(result, credentials.Credentials):
            raise credentials.LoginError(
                f"it has returned {type(result).__name__}, which is no kopf.ConnectionInfo "
                f"(nor kopf.AiohttpSession, nor None).")
    return {str(id_): result for id_, result in results.items()}
