"""
Commands as processes: to be awaited, or to be killed in the middle of their work.
"""
import asyncio
import asyncio.subprocess
import contextlib
import os
import sys
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def start(cluster: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a command of Kopf; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, '-m', 'kopf', *args, env={**os.environ, 'KUBECONFIG': cluster},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def run(cluster: str, *args: str) -> tuple[int | None, str]:
    """Run a command of Kopf; returns the exit code, and what it has printed."""
    async with start(cluster, *args) as process:
        output, _ = await process.communicate()
        return process.returncode, output.decode()
