"""
The sandbox for the command line: prints how to connect, and ends with the command.
"""
import asyncio
import contextlib
import errno
import functools
import os
import pathlib
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import click
import yaml

from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.logins import piggybacking
from kopf._cogs.structs import credentials, references
from kopf._core.intents import causes, registries
from kopf._kits import commanding, redirecting
from kopf._kits.sandbox import faults, keeping, statuses, upstreams
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import apis, sandboxthreads

SHARED = 'KOPF_SHARED_SANDBOX'
"""The environment variable with the kubeconfig of the sandbox, for child processes."""


def serve(
        *,
        fault: Sequence[str] = (),
        kubeconfig_out: pathlib.Path | None = None,
        upstream: str | None = None,
        **options: Any,
) -> None:
    """
    Run a sandbox until SIGINT or SIGTERM. ``upstream`` is the context of the upstream, empty for
    the current one. For the other options, see `Sandbox`.
    """
    async def run() -> None:
        async with Sandbox(upstream=below, **options) as sandbox:
            for each in parsed:
                sandbox.faults.add(each)
            with _introduce(sandbox, kubeconfig_out):
                await _wait_signal()

    parsed = _parse(fault)
    with _explain(), _report(upstream) as below:
        asyncio.run(run())


@contextlib.contextmanager
def accompany(
        *,
        fault: Sequence[str] = (),
        kubeconfig_out: pathlib.Path | None = None,
        load: Sequence[pathlib.Path] = (),
        upstream: str | None = None,
        registry: registries.OperatorRegistry | None = None,
        namespaces: Collection[references.NamespacePattern] = (),
        confined: Sequence[Any] | None = None,
        make_upstream: Callable[..., upstreams.Upstream] = upstreams.Upstream,
        place: redirecting.Place | None = None,
        **options: Any,
) -> Iterator[vaults.Vault]:
    """
    Run a sandbox in a thread for the block, and yield its credentials.

    During the block, the clients that handlers use find only the sandbox, by ``$KUBECONFIG``.
    The login handlers of the ``registry`` log in to the current context of the upstream. The
    ``namespaces`` of the upstream matter if its user may not list them. If an operator is
    ``confined`` (given by its registry, settings, and namespaces), the credentials have only
    the rights that it needs; at the end, refused requests and unused rights are printed.
    Clients that are made already expect the sandbox at the ``place``. Default: any place.
    """
    parsed = _parse(fault)
    with contextlib.ExitStack() as stack:
        place = place or stack.enter_context(redirecting.reserve())
        own = _define_kinds()
        with _explain():
            below = stack.enter_context(_report(upstream, registry, functools.partial(
                make_upstream, namespaces=references.select_specific_namespaces(namespaces))))
            sandbox = Sandbox(load=[*own, *load], upstream=below, **options)
            sandbox.occupy(place)
            thread = stack.enter_context(sandboxthreads.run_in_thread(sandbox))
        for each in parsed:
            sandbox.faults.add(each)
        stack.enter_context(_introduce(sandbox, kubeconfig_out))
        sandbox.write_kubeconfig(place.kubeconfig)
        stack.enter_context(redirecting.redirect(place.kubeconfig))
        os.environ[SHARED] = str(place.kubeconfig)
        stack.callback(os.environ.pop, SHARED)
        item = thread.credentials if confined is None else (
            stack.enter_context(_confine(thread, confined, place)))
        asyncio.run(piggybacking.configure_clients())
        yield vaults.Vault({'sandbox': item})


@contextlib.contextmanager
def _confine(
        thread: sandboxthreads.SandboxThread, operator: Sequence[Any], place: redirecting.Place,
) -> Iterator[credentials.ConnectionInfo]:
    try:
        item, confinement = thread.confine(*operator)
    except commanding.CommandError as e:
        raise click.ClickException(str(e)) from e
    assert item.token is not None
    thread.sandbox.share_user(item.token, place.token)  # it also confines the clients of handlers
    config = thread.kubeconfig()
    for user in config['users']:
        user['user'] = {'token': item.token}
    keeping.write_secret(place.kubeconfig, yaml.safe_dump(config))
    yield item
    for text in confinement.refused:
        click.echo(f"Refused, as `kopf rbac` does not print it: {text}")
    for text in confinement.unused:
        click.echo(f"Not used: {text}")


def join() -> vaults.Vault:
    """
    Get the credentials of the sandbox of the parent process, e.g. for ``--reload`` or
    ``--processes``. So login handlers and service accounts do not lead elsewhere.

    The definitions of the typed kinds of this process are applied. Those that users have loaded
    from files, or have applied, stay as they are.
    """
    vault = vaults.Vault({'sandbox': apis.read_credentials(
        yaml.safe_load(pathlib.Path(os.environ[SHARED]).read_text('utf-8')))})
    if definitions := _define_kinds():
        from kopf._kits.typed import publishing
        try:
            for definition in definitions:
                with contextlib.suppress(publishing.ConflictError):
                    asyncio.run(publishing.publish(
                        [definition], publishing.Options(apply=True), vault=vault))
        except commanding.CommandError as e:
            raise click.ClickException(str(e)) from e
    asyncio.run(piggybacking.configure_clients())
    return vault


def _define_kinds() -> Sequence[Mapping[str, Any]]:
    """Define the typed kinds of this process, if there are any."""
    kinds = sys.modules.get('kopf._kits.typed.kinds')
    try:
        return [] if kinds is None else kinds.define(kinds.get_declared())
    except TypeError as e:
        raise click.ClickException(str(e)) from e


@contextlib.contextmanager
def _report(
        context: str | None, registry: registries.OperatorRegistry | None = None,
        make: Callable[..., upstreams.Upstream] = upstreams.Upstream,
) -> Iterator[upstreams.Upstream | None]:
    """
    Make the upstream, if the context names one. At the end, print how many requests it got, and
    which resources the handlers need, but could not be read.
    """
    if context is None:
        yield None
        return
    vault = None
    if not context and registry is not None and (
            registry.get_activity_handlers(causes.Activity.AUTHENTICATION)):
        vault = vaults.Vault()
        commanding.prepare_login(
            vault, registry=registry, settings=configuration.OperatorSettings())
    selectors = None if registry is None else registry.get_selectors()
    upstream = make(vault, context=context or None, selectors=selectors)
    try:
        yield upstream
    finally:
        for resource, reason in upstream.unread.items() if selectors is not None else ():
            if upstream.needs(*resource):
                click.echo(f"! {statuses.qualified(*resource)} cannot be read: {reason}")
        counts = ', '.join(f"{number} {verb}" for verb, number in upstream.requests.items())
        click.echo(f"Requests to the upstream: {counts or 'none'}.")


def _parse(specs: Sequence[str]) -> list[faults.Fault]:
    try:
        return [faults.parse(spec) for spec in specs]
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint='--fault') from e


@contextlib.contextmanager
def _explain() -> Iterator[None]:
    """Report in one line why the sandbox cannot start."""
    try:
        yield
    except OSError as e:
        hint = ". Stop the program that uses the port, or choose any free port: --port=0"
        raise click.ClickException(
            f"The sandbox cannot start: {e}{hint if e.errno == errno.EADDRINUSE else ''}") from e
    except (ValueError, keeping.StateError, statuses.APIError, credentials.LoginError) as e:
        raise click.ClickException(f"The sandbox cannot start: {e or repr(e)}") from e


@contextlib.contextmanager
def _introduce(sandbox: Sandbox, path: pathlib.Path | None) -> Iterator[None]:
    """Write the kubeconfig and print its path. Without ``path``, the file is temporary."""
    with tempfile.TemporaryDirectory(prefix='kopf-sandbox-') as folder:
        path = path if path is not None else pathlib.Path(folder, 'kubeconfig')
        sandbox.write_kubeconfig(path)
        click.echo(f"The sandbox is at {sandbox.url}; to reach it with kubectl:")
        click.echo(f"    export KUBECONFIG={shlex.quote(str(path.absolute()))}")
        yield


async def _wait_signal() -> None:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    await signalled.wait()
