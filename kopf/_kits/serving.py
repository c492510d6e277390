"""
The sandbox for the command line: it tells how to reach it, and ends with the command.
"""
import asyncio
import contextlib
import os
import pathlib
import shlex
import signal
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import click
import yaml

from kopf._cogs.clients import vaults
from kopf._kits.sandbox import faults, keeping, statuses
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import threads


def serve(
        *,
        fault: Sequence[str] = (),
        kubeconfig_out: pathlib.Path | None = None,
        **options: Any,
) -> None:
    """Run a sandbox until a signal comes; the options are those of `Sandbox`."""
    async def run() -> None:
        async with Sandbox(**options) as sandbox:
            for each in parsed:
                sandbox.faults.add(each)
            with _introduce(sandbox, kubeconfig_out):
                await _wait_signal()

    parsed = _parse(fault)
    with _explain():
        asyncio.run(run())


@contextlib.contextmanager
def accompany(
        *,
        fault: Sequence[str] = (),
        kubeconfig_out: pathlib.Path | None = None,
        **options: Any,
) -> Iterator[vaults.Vault]:
    """
    Run a sandbox in a thread for the block, and give the credentials for it.

    ``$KUBECONFIG`` is its one meanwhile: for the clients that handlers use.
    """
    parsed = _parse(fault)
    with contextlib.ExitStack() as stack:
        with _explain():
            thread = stack.enter_context(threads.run_sandbox(**options))
        for each in parsed:
            thread.sandbox.faults.add(each)
        known = os.environ.get('KUBECONFIG')
        with _introduce(thread.sandbox, kubeconfig_out) as path:
            os.environ['KUBECONFIG'] = str(path)
            try:
                yield vaults.Vault({'sandbox': thread.credentials})
            finally:
                if known is None:
                    del os.environ['KUBECONFIG']
                else:
                    os.environ['KUBECONFIG'] = known


def _parse(specs: Sequence[str]) -> list[faults.Fault]:
    try:
        return [faults.parse(spec) for spec in specs]
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint='--fault') from e


@contextlib.contextmanager
def _explain() -> Iterator[None]:
    """Tell in a line what hinders the sandbox from starting."""
    try:
        yield
    except (OSError, ValueError, keeping.StateError, statuses.APIError) as e:
        raise click.ClickException(f"The sandbox cannot start: {e or repr(e)}") from e


@contextlib.contextmanager
def _introduce(sandbox: Sandbox, path: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """Write the kubeconfig for the time of the block, if no file is told, and tell about it."""
    with tempfile.TemporaryDirectory(prefix='kopf-sandbox-') as folder:
        path = path if path is not None else pathlib.Path(folder, 'kubeconfig')
        _write_secret(path, yaml.safe_dump(sandbox.kubeconfig(), sort_keys=False))
        click.echo(f"The sandbox is at {sandbox.url}; to reach it with kubectl:")
        click.echo(f"    export KUBECONFIG={shlex.quote(str(path.absolute()))}")
        yield path


def _write_secret(path: pathlib.Path, text: str) -> None:
    """Write the file at once, readable only by its owner."""
    with tempfile.NamedTemporaryFile('w', dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


async def _wait_signal() -> None:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    await signalled.wait()
