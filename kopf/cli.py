"""
The command line of Kopf.

Every option can also be set by an environment variable: ``KOPF_``, the command, and the option's
name, e.g. ``KOPF_RUN_NAMESPACES``; those that can be repeated take several values separated by
spaces.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import pathlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any, ParamSpec, TypeVar

import click

from kopf._cogs.aiokits import flags
from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import loaders, versions
from kopf._cogs.structs import credentials
from kopf._core.actions import loggers
from kopf._core.engines import activities
from kopf._core.engines.probing import endpoints
from kopf._core.intents import registries
from kopf._core.reactor import commanding, leaving, running

P = ParamSpec('P')
R = TypeVar('R')

DEV_PRIORITY = 666

logger: logging.Logger = logging.getLogger(__name__)


@dataclasses.dataclass
class CLIControls:
    """
    What the code that calls the command line itself can pass in, as click's ``obj``.

    It is how operators are run by the command line's rules in tests and embedded: ``ready_flag`` is
    set when the operator is started, and it ends when ``stop_flag`` is set. The rest replaces the
    defaults.
    """

    ready_flag: flags.Flag | None = None
    stop_flag: flags.Flag | None = None
    vault: vaults.Vault | None = None
    registry: registries.OperatorRegistry | None = None
    settings: configuration.OperatorSettings | None = None
    loop: asyncio.AbstractEventLoop | None = None


class LogFormatChoice(click.Choice[str]):
    """The log formats by their names in lower case."""

    def __init__(self) -> None:
        super().__init__([log_format.name.lower() for log_format in loggers.LogFormat])

    def convert(
            self,
            value: Any,
            param: click.Parameter | None,
            ctx: click.Context | None,
    ) -> Any:
        if isinstance(value, loggers.LogFormat):
            return value
        return loggers.LogFormat[super().convert(value, param, ctx).upper()]


def check_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse what the health checks cannot be served at."""
    try:
        if value is not None:
            endpoints.Endpoint.parse(value)
    except endpoints.EndpointError as e:
        raise click.BadParameter(str(e), ctx=ctx, param=param) from None
    return value


def logging_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the options of logging to a command, and configure it before the command."""
    @click.option('-v', '--verbose', is_flag=True, help="Tell in detail what is done and why.")
    @click.option('-d', '--debug', is_flag=True,
                  help="Tell everything, the insides of asyncio and HTTP included.")
    @click.option('-q', '--quiet', is_flag=True, help="Show only warnings and errors.")
    @click.option('--log-format', type=LogFormatChoice(), default='full', show_default=True,
                  help="Whole lines, only the messages, or JSON.")
    @click.option('--log-refkey', type=str,
                  help="The field of JSON lines for the object they are about. [default: object]")
    @click.option('--log-prefix/--no-log-prefix', default=None,
                  help="Begin the messages about objects with their names. [default: not for JSON]")
    @functools.wraps(fn)
    def wrapper(
            *args: Any,
            verbose: bool,
            debug: bool,
            quiet: bool,
            log_format: loggers.LogFormat,
            log_refkey: str | None,
            log_prefix: bool | None,
            **kwargs: Any,
    ) -> R:
        loggers.configure(
            debug=debug, verbose=verbose, quiet=quiet,
            log_format=log_format, log_prefix=log_prefix, log_refkey=log_refkey)
        return fn(*args, **kwargs)
    return wrapper  # type: ignore[return-value]


def sandbox_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the options on what is in the sandbox, and how it can be reached."""
    path = click.Path(dir_okay=False, path_type=pathlib.Path)
    existing = click.Path(dir_okay=False, path_type=pathlib.Path, exists=True)

    @click.option('--load', multiple=True, type=existing, metavar='FILE',
                  help="YAML with objects to be there from the beginning. Can be repeated.")
    @click.option('--state', type=path, metavar='FILE',
                  help="Keep all objects in this file, and go on from it the next time.")
    @click.option('--kubeconfig-out', type=path, metavar='FILE',
                  help="Write the kubeconfig there. [default: a file until the end]")
    @click.option('--fault', multiple=True, metavar='SPEC',
                  help="Misbehave, e.g. refuse:verb=patch,resource=pods,status=500,count=3. Or "
                       "delay, drop, cut, expire, compact, lose, slow. Can be repeated.")
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return fn(*args, **kwargs)
    return wrapper


def scope_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the options on what part of the cluster a command is about."""
    @click.option('-A', '--all-namespaces', 'clusterwide', is_flag=True,
                  help="The whole cluster.")
    @click.option('-n', '--namespace', 'namespaces', multiple=True,
                  help="A namespace, or a pattern of names: 'a*,!ab*'. Can be repeated.")
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs['clusterwide'] and kwargs['namespaces']:
            raise click.UsageError("Use either --namespace or --all-namespaces, but not both.")
        return fn(*args, **kwargs)
    return wrapper


@click.group(name='kopf', context_settings={
    'auto_envvar_prefix': 'KOPF',
    'help_option_names': ['-h', '--help'],
})
@click.version_option(versions.version, prog_name='kopf')
@click.make_pass_decorator(CLIControls, ensure=True)
def main(__controls: CLIControls) -> None:
    """Kopf runs Kubernetes operators written in Python."""


@main.command()
@logging_options
@scope_options
@click.option('--standalone', is_flag=True, default=None,
              help="Work as if there were no other operators.")
@click.option('--dev', is_flag=True,
              help=f"Development: take over from other operators (priority {DEV_PRIORITY}).")
@click.option('-L', '--liveness', 'liveness_endpoint', metavar='URL', callback=check_endpoint,
              help="Where to serve the health checks: http://0.0.0.0:8080/healthz")
@click.option('-P', '--peering', 'peering_name', envvar='KOPF_RUN_PEERING',
              metavar='NAME',
              help="The peering to join; it is then required. [default: default, if it exists]")
@click.option('-p', '--priority', type=int,
              help="Of several operators, the one with the highest priority works. [default: 0]")
@click.option('-m', '--module', 'modules', multiple=True,
              help="A module with handlers, as in `python -m`. Can be repeated.")
@click.option('--sandbox', is_flag=True,
              help="Run on a Kubernetes API of its own, in this process: no cluster is needed.")
@sandbox_options
@click.argument('paths', nargs=-1)
@click.make_pass_decorator(CLIControls, ensure=True)
def run(
        __controls: CLIControls,
        paths: Collection[str],
        modules: Collection[str],
        peering_name: str | None,
        priority: int | None,
        dev: bool,
        standalone: bool | None,
        namespaces: Collection[str],
        clusterwide: bool,
        liveness_endpoint: str | None,
        sandbox: bool,
        **sandboxing: Any,
) -> None:
    """
    Run the operator made of the handlers in PATHS (files of Python) and modules.

    For example: kopf run --all-namespaces --verbose handlers.py
    """
    if any(sandboxing.values()) and not sandbox:
        raise click.UsageError("--load, --state, --kubeconfig-out, --fault need --sandbox.")
    try:
        loaders.preload(paths=paths, modules=modules)
    except loaders.LoadingError as e:
        raise _describe(e) from e
    if not clusterwide and not namespaces:
        clusterwide = True
        logger.warning(
            "Neither --namespace nor --all-namespaces is given: serving the whole cluster. "
            "In the future, one of them will be required.")

    loop = __controls.loop or _make_fast_loop()
    owning = leaving.owns_process_var.set(True)
    if __controls.stop_flag is None:
        gc.freeze()  # what is loaded stays for good: full collections, which block, take less time
    try:
        with _accompany(sandboxing) if sandbox else contextlib.nullcontext(
                __controls.vault) as vault:
            running.run(
                standalone=standalone,
                namespaces=namespaces,
                clusterwide=clusterwide,
                priority=DEV_PRIORITY if dev and priority is None else priority,
                peering_name=peering_name,
                liveness_endpoint=liveness_endpoint,
                registry=__controls.registry,
                settings=__controls.settings,
                stop_flag=__controls.stop_flag,
                ready_flag=__controls.ready_flag,
                vault=vault,
                loop=loop,
            )
    except (credentials.LoginError, activities.ActivityError, endpoints.EndpointError) as e:
        raise click.ClickException(str(e)) from e
    finally:
        leaving.owns_process_var.reset(owning)
        if loop is not None and loop is not __controls.loop:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


@main.command()
@logging_options
@click.option('--port', type=int, default=0, help="Where to listen. [default: any free port]")
@click.option('--tls', is_flag=True,
              help="Serve HTTPS with certificates made for this run; it needs kopf[sandbox].")
@sandbox_options
def sandbox(**options: Any) -> None:
    """
    Run a Kubernetes API for trying and testing, until it is stopped.

    For example: kopf sandbox --load examples/crd.yaml
    """
    from kopf._kits import serving
    serving.serve(**options)


@main.command()
@logging_options
@scope_options
@click.option('-i', '--id', type=str, help="By whom; a name of this very request.")
@click.option('--dev', is_flag=True, help=f"The same as --priority={DEV_PRIORITY}.")
@click.option('-P', '--peering', 'peering_name', envvar='KOPF_FREEZE_PEERING',
              metavar='NAME', required=True,
              help="The peering of the operators to freeze.")
@click.option('-p', '--priority', type=int, required=True, default=100, show_default=True,
              help="Operators with lower priorities freeze.")
@click.option('-t', '--lifetime', type=int, required=True, help="For how long, in seconds.")
@click.option('-m', '--message', type=str, help="Why: a text for people.")
@click.make_pass_decorator(CLIControls, ensure=True)
def freeze(
        __controls: CLIControls,
        id: str | None,
        dev: bool,
        priority: int,
        message: str | None,
        lifetime: int,
        **where: Any,
) -> None:
    """Freeze the operators of a peering: they handle nothing until resumed."""
    _command(__controls, commanding.freeze, identity=id, lifetime=lifetime, message=message,
             priority=DEV_PRIORITY if dev else priority, **where)


@main.command()
@logging_options
@scope_options
@click.option('-i', '--id', type=str, help="Whose freezing is over; as it was frozen.")
@click.option('-P', '--peering', 'peering_name', envvar='KOPF_RESUME_PEERING',
              metavar='NAME', required=True,
              help="The peering of the operators to resume.")
@click.make_pass_decorator(CLIControls, ensure=True)
def resume(__controls: CLIControls, id: str | None, **where: Any) -> None:
    """Resume the operators of a peering that were frozen."""
    _command(__controls, commanding.resume, identity=id, **where)


def _command(
        controls: CLIControls, fn: Callable[..., Coroutine[None, None, None]], **options: Any,
) -> None:
    if not options['clusterwide'] and not options['namespaces']:
        options['clusterwide'] = True
        logger.warning(
            "Neither --namespace nor --all-namespaces is given: the operators of the whole cluster "
            "are meant. In the future, one of them will be required.")
    try:
        running.run(
            registry=controls.registry, settings=controls.settings, vault=controls.vault,
            loop=controls.loop, clusterwide=options['clusterwide'],
            namespaces=options['namespaces'], _command=fn(
                registry=controls.registry, settings=controls.settings, vault=controls.vault,
                **options))
    except (credentials.LoginError, commanding.CommandError) as e:
        raise click.ClickException(str(e)) from e


def _accompany(options: dict[str, Any]) -> contextlib.AbstractContextManager[vaults.Vault | None]:
    from kopf._kits import serving
    return serving.accompany(**options)


def _describe(e: loaders.LoadingError) -> click.ClickException:
    return click.ClickException('\n'.join(filter(None, [str(e), e.details.rstrip()])))


def _make_fast_loop() -> asyncio.AbstractEventLoop | None:
    try:
        import uvloop
    except ImportError:
        return None
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
