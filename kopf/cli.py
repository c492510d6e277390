"""
The command line of Kopf.

An environment variable can set each option: ``KOPF_``, the command, and the name of the option,
e.g. ``KOPF_RUN_NAMESPACE``. Variables of repeatable options contain values separated by spaces;
files are separated by colons.
"""

import asyncio
import contextlib
import copy
import dataclasses
import datetime
import errno
import functools
import gc
import json
import logging
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
from click import shell_completion

from kopf._cogs.aiokits import flags
from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration, conventions
from kopf._cogs.helpers import loaders, versions
from kopf._cogs.serving import endpoints
from kopf._cogs.structs import credentials
from kopf._core.actions import loggers
from kopf._core.engines import activities
from kopf._core.intents import registries
from kopf._core.path import switches
from kopf._core.reactor import waiting
from kopf._kits import helpscreens, operatorchecks, running, shutdown
from kopf._kits.helpscreens import option

P = ParamSpec('P')
R = TypeVar('R')

DEV_PRIORITY = 666

LEASE = 'kopf-operator'
"""The Lease of ``--leader-elect`` without a name."""

OMITTED = {'--leader-elect': LEASE, '--upstream': '', '--shadow': ''}
"""The values of options that are given without values."""

SHARDS = 32
"""How many shards there are with ``--processes``."""

COLLECTION_THRESHOLD = 10_000
"""
After how many new containers the garbage is collected. With Python's 700, this took a tenth of the
CPU of an operator that handles updates.

Kopf makes almost no reference cycles: neither for handlers that succeed, nor for those that fail.
"""

UNITS = {'s': 1, 'm': 60, 'h': 3600}
LOG_FORMATS = tuple(log_format.name.lower() for log_format in loggers.LogFormat)
EFFECTS = ('deletions', 'restarts')
"""What ``kopf plan --fail-on`` can be about."""

logger: logging.Logger = logging.getLogger(__name__)


@dataclasses.dataclass
class CLIControls:
    """
    Controls for code that calls the command line, e.g. tests: passed as ``obj`` of click.

    Kopf sets ``ready_flag`` when the operator has started. The operator stops when the caller sets
    ``stop_flag``. The other attributes replace the defaults.
    """

    ready_flag: flags.Flag | None = None
    stop_flag: flags.Flag | None = None
    vault: vaults.Vault | None = None
    registry: registries.OperatorRegistry | None = None
    settings: configuration.OperatorSettings | None = None
    loop: asyncio.AbstractEventLoop | None = None
    load: Callable[..., None] = loaders.preload


EXISTING = click.Path(dir_okay=False, path_type=pathlib.Path, exists=True)
"""The option type for files that are read at once."""


def _get_controls() -> CLIControls:
    return click.get_current_context().ensure_object(CLIControls)


class WritablePath(click.Path):
    """The option type for files that are written, maybe much later: their folder must exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if not pathlib.Path(os.fsdecode(path)).absolute().parent.is_dir():
            self.fail(f"The folder of {value!r} does not exist. Create it first.", param, ctx)
        return path


class Commands(helpscreens.PageGroup):
    """The commands. Files and options without a command are recognised as those of `kopf run`."""

    group_class: type[click.Group] | type[type] | None = helpscreens.PageGroup

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
            sys.exit(f"Error: Nothing can be written: {e.strerror}.")

    def resolve_command(
            self, ctx: click.Context, args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0].endswith('.py') and not ctx.resilient_parsing:  # that is for completion
            ctx.fail(f"No such command {args[0]!r}. Did you mean: kopf run {' '.join(args)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            rest = [arg for arg in given if arg not in self.commands]
            raise click.UsageError(
                f"{e.format_message()} The options of a command follow the command, for example: "
                f"kopf run {' '.join(rest)}", ctx=ctx) from None


def check_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse URLs at which Kopf cannot serve anything."""
    try:
        if value is not None:
            endpoints.Endpoint.parse(value)
    except endpoints.EndpointError as e:
        raise click.BadParameter(str(e)) from None
    return value


def check_name(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse empty names: e.g. of unset variables in ``--namespace "$NAMESPACE,!$OTHER"``."""
    if any(part.strip().removeprefix('!') == '' for name in (value if param.multiple else [value])
           if name is not None for part in name.rstrip(', ').split(',')):
        raise click.BadParameter("a name is empty. Is a variable unset?")
    return value


def name_lease(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Take a boolean, e.g. of ``--leader-elect=false``, for what it means, and not for a name."""
    check_name(ctx, param, value)
    try:
        return value and (LEASE if click.BOOL.convert(value, param, ctx) else None)
    except click.BadParameter:
        return value


def parse_duration(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse seconds, or a number with a unit: ``90s``, ``30m``, ``1h``."""
    number, unit = (value[:-1], value[-1]) if value[-1:] in UNITS else (value, 's')
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(number) * UNITS[unit]) < math.inf:  # not NaN
            return seconds
    raise click.BadParameter(f"{value!r} is not a time, such as 90s, 30m, or 1h.")


def split_effects(ctx: click.Context, param: click.Parameter, value: str) -> Collection[str]:
    """Split a list with commas: ``deletions,restarts``."""
    names = [name for name in value.split(',') if name]
    for name in names:
        if name not in EFFECTS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(map(repr, EFFECTS))}.")
    return names


def logging_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the logging options to a command, and configure the logging before the command."""
    option = functools.partial(helpscreens.option, section='Logging')

    @option('-v', '--verbose', is_flag=True, help="Show what is done, and why.")
    @option('-d', '--debug', is_flag=True,
            help="Show everything, including the internals of asyncio and HTTP.")
    @option('-q', '--quiet', is_flag=True, help="Show only warnings and errors.")
    @option('--log-format', type=click.Choice(LOG_FORMATS, case_sensitive=False), default='full',
            show_default=True, help="Log only the messages (plain), whole lines (full), or JSON.")
    @option('--log-refkey', metavar='KEY',
            help="Put the object that a line is about into this field of JSON. [default: object]")
    @option('--log-prefix/--no-log-prefix', default=None,
            help="Begin the messages about objects with their names. [default: not for JSON]")
    @option('--color/--no-color', default=None,
            help="Log in colours, and aligned. [default: if stderr is a terminal, unless "
                 "$NO_COLOR is set]")
    @functools.wraps(fn)
    def wrapper(
            *args: Any,
            color: bool | None,
            verbose: bool,
            debug: bool,
            quiet: bool,
            log_format: str,
            log_refkey: str | None,
            log_prefix: bool | None,
            **kwargs: Any,
    ) -> R:
        loggers.configure(
            debug=debug, verbose=verbose, quiet=quiet,
            log_format=loggers.LogFormat[log_format.upper()], log_prefix=log_prefix,
            log_refkey=log_refkey,
            color=_is_colored() if color is None else color)
        return fn(*args, **kwargs)
    return wrapper  # type: ignore[return-value]


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None if it is closed


def _is_colored() -> bool:
    return _is_terminal() and not os.environ.get('NO_COLOR') and os.environ.get('TERM') != 'dumb'


def sandbox_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the options for the content, the kubeconfig, and the faults of a sandbox."""
    path = WritablePath(dir_okay=False, path_type=pathlib.Path)
    option = functools.partial(helpscreens.option, section='Sandbox')

    @option('--load', multiple=True, type=EXISTING, metavar='FILE',
            help="Create the objects of this YAML file at the start. Can be repeated.")
    @option('--state', type=path, metavar='FILE',
            help="Keep all objects in this file, and load them on the next run.")
    @option('--upstream', metavar='[=CONTEXT]',
            help="Also read all objects from the cluster of this context of the kubeconfig, and "
                 "write nothing to it. [default: the current context]")
    @option('--kubeconfig-out', type=path, metavar='FILE',
            help="Write the kubeconfig to this file. [default: a temporary file]")
    @option('--fault', multiple=True, metavar='SPEC',
            help="Inject a fault, e.g. refuse:verb=patch,status=500,count=3. Or delay, drop, cut, "
                 "expire, compact, lose, slow. Can be repeated.")
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs['upstream'] is not None and kwargs['state'] is not None:
            raise click.UsageError(
                "Use either --state or --upstream: the objects depend on the upstream.")
        return fn(*args, **kwargs)
    return wrapper


def scope_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add the options that select the namespaces of a command."""
    option = functools.partial(helpscreens.option, section='Scope')

    @option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Serve the whole cluster.")
    @option('-n', '--namespace', 'namespaces', multiple=True, metavar='PATTERN',
            callback=check_name,
            help="Serve this namespace, or those that match the pattern: 'a*,!ab*'. "
                 "Can be repeated.")
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs['clusterwide'] and kwargs['namespaces']:
            variables = helpscreens.list_set(
                click.get_current_context(), names={'clusterwide', 'namespaces'})
            raise click.UsageError(
                "Use either --namespace or --all-namespaces, but not both." + (
                    f" These variables are set: {', '.join(variables)}." if variables else ""))
        return fn(*args, **kwargs)
    return wrapper


FILE = click.Path(readable=False)
"""What shells complete to names of files. Whether it is one, is checked when it is loaded."""

_paths_argument = click.argument('paths', nargs=-1, type=FILE)

_modules_option = option(
    '-m', '--module', 'modules', multiple=True, metavar='MODULE', section='Handlers',
    help="Load this module with handlers, as `python -m` does. Can be repeated.")

_place_option = option('-n', '--namespace', metavar='NAME', callback=check_name,
                       help="Take the object of this namespace. [default: that of the kubeconfig]")

_rights_options = helpscreens.combine(
    option('--crd', 'definitions', multiple=True, metavar='FILE', section='Rights', type=EXISTING,
           help="Read the definitions of resources from this file. Can be repeated."),
    option('--cluster', is_flag=True, section='Rights',
           help="Ask the cluster which resources there are."),
    option('--startup', is_flag=True, section='Rights',
           help="Call the startup handlers first, if they change the settings; "
                "and the cleanup handlers at the end."))


@contextlib.contextmanager
def _showing(*errors: type[Exception]) -> Iterator[None]:
    """Show these errors of the block in a line, without a traceback."""
    try:
        yield
    except errors as e:
        raise click.ClickException(str(e)) from e


@click.group(name='kopf', cls=Commands, context_settings={
    'auto_envvar_prefix': 'KOPF',
    'help_option_names': ['-h', '--help'],
})
@click.version_option(versions.version, prog_name='kopf')
def main() -> None:
    """Run Kubernetes operators written in Python."""


class RunCommand(helpscreens.SectionCommand):
    """A command with options whose values can be omitted, and never are the next arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [
            f'{arg}={OMITTED[arg]}' if arg in OMITTED else arg for arg in args])


@main.command(page='quickstart', short_help="Create a new operator.")
@click.argument('name')
def init(name: str) -> None:
    """
    Make the folder NAME with a small operator: a kind, a handler, a test, an image. Then print the
    commands to type next.

    For example: kopf init my-operator
    """
    from kopf._kits.projects import starting  # only for this command
    with _showing(starting.StartError):
        commands = starting.start(name, pathlib.Path(name))
    click.echo(f"Created {name}. Type next:")
    for command in commands:
        click.echo(f"    {command}")


@main.command(cls=RunCommand, page='running', short_help="Run an operator.")
@logging_options
@scope_options
@option('--standalone', is_flag=True, default=None, section='Peering',
        help="Ignore other operators. [default on a sandbox]")
@option('--dev', is_flag=True, section='Peering',
        help=f"Take over from other operators while you develop: the priority is {DEV_PRIORITY}.")
@option('--release-brakes', is_flag=True, section='Health',
        help="Only warn of what is over the budgets of settings.brakes, and stop nothing.")
@option('-L', '--liveness', 'liveness_endpoint', metavar='URL', section='Health',
        callback=check_endpoint,
        help="Serve the health checks at this URL: http://0.0.0.0:8080/healthz")
@option('--metrics', 'metrics_endpoint', metavar='URL', section='Health', callback=check_endpoint,
        help="Serve metrics for Prometheus at this URL: http://0.0.0.0:8080/metrics")
@option('--tracing', is_flag=True, section='Health',
        help="Emit OpenTelemetry spans: of reconciliations, handlers, and writes.")
@option('--debug-endpoint', metavar='URL', section='Health', callback=check_endpoint,
        help="Serve the state of the operator as JSON at this URL, to this machine only: "
             "http://127.0.0.1:8080/debug")
@option('-P', '--peering', 'peering_name', metavar='NAME', section='Peering', callback=check_name,
        help="Join this peering, and wait for it if it is absent. [default: default, if it exists]")
@option('-p', '--priority', type=int, metavar='N', section='Peering',
        help="Set the priority: of several operators, the highest one works. [default: 0]")
@option('--leader-elect', metavar='[=NAME]', section='Leadership', callback=name_lease,
        help=f"Of several replicas, let only one work: the one that holds the Lease of "
             f"this name. [default: {LEASE}]")
@option('--shards', type=click.IntRange(1, 4096), metavar='N', section='Sharding',
        help="Let all replicas work, each on its share of N shards of the objects.")
@option('--processes', type=click.IntRange(1), metavar='N', section='Sharding',
        help=f"Run N processes as replicas, to use more than one CPU. It implies "
             f"--shards={SHARDS}.")
@_modules_option
@option('--reload', is_flag=True, section='Handlers',
        help="Restart the operator when its files change, and keep the sandbox.")
@option('--sandbox', is_flag=True, section='Sandbox',
        help="Run on a Kubernetes API in this process: no cluster is needed.")
@option('--rbac', is_flag=True, section='Sandbox',
        help="Let the operator do only what `kopf rbac` prints, and show at the end "
             "what was refused, and what was not used.")
@sandbox_options
@option('--shadow', metavar='[=CONTEXT]', section='Shadow',
        help="Run beside the operator in production in the cluster of this context, write nothing "
             "there, and compare what both do. [default: the current context]")
@option('--shadow-window', type=click.FloatRange(min=0, min_open=True), default=60.0,
        metavar='SECONDS', section='Shadow',
        help="Report differences that last for two such windows. [default: 60]")
@option('--shadow-manager', 'shadow_managers', multiple=True, metavar='NAME', section='Shadow',
        help="Also count the writes of this field manager as those of production. Can be repeated.")
@option('--shadow-reviews', type=click.FloatRange(0, 1), default=1.0,
        metavar='SHARE', section='Shadow',
        help="Call the admission handlers for this part of the changes. [default: 1]")
@option('--allow', 'allowed', multiple=True, metavar='HOST', section='Shadow',
        help="Let handlers of a shadow connect to this host or Unix socket, or run "
             "the program of this name. Can be repeated.")
@_paths_argument
def run(
        paths: Collection[str],
        modules: Collection[str],
        peering_name: str | None,
        priority: int | None,
        dev: bool,
        standalone: bool | None,
        leader_elect: str | None,
        shards: int | None,
        processes: int | None,
        namespaces: Collection[str],
        clusterwide: bool,
        release_brakes: bool,
        liveness_endpoint: str | None,
        metrics_endpoint: str | None,
        tracing: bool,
        debug_endpoint: str | None,
        reload: bool,
        sandbox: bool,
        rbac: bool,
        shadow: str | None,
        shadow_window: float,
        shadow_managers: Collection[str],
        shadow_reviews: float,
        allowed: Collection[str],
        **sandboxing: Any,
) -> None:
    """
    Run an operator: the handlers in PATHS (Python files) and in modules.

    For example: kopf run --all-namespaces --verbose handlers.py
    """
    if shadow is not None:
        if sandbox or reload or rbac or (processes or 1) > 1 or any(
                sandboxing[name] for name in ('load', 'state')) or (
                sandboxing['upstream'] is not None):
            raise click.UsageError(
                "--shadow is for one process on a sandbox of its own: use it without --sandbox, "
                "--upstream, --load, --state, --rbac, --reload, --processes.")
        sandbox, sandboxing['upstream'] = True, shadow
    elif shadow_managers or allowed:
        raise click.UsageError("--shadow-manager, --allow need --shadow.")
    if not sandbox and any(value not in (None, ()) for value in sandboxing.values()):
        raise click.UsageError(
            "--load, --state, --upstream, --kubeconfig-out, --fault need --sandbox.")
    if rbac and (not sandbox or reload or (processes or 1) > 1):
        raise click.UsageError("--rbac needs --sandbox, and one process: without --reload.")
    controls = _get_controls()
    from kopf._kits import lifelines  # only for this command
    lifelines.follow()
    if reload:
        _reload(paths, modules, sandboxing if sandbox else None, is_alone=peering_name is None)
    if processes is not None and processes > 1:
        _supervise(processes, shards, sandboxing if sandbox else None, {
            '--liveness': liveness_endpoint, '--metrics': metrics_endpoint,
            '--debug-endpoint': debug_endpoint})
    expecting: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if sandbox:
        from kopf._kits import redirecting  # only for this option
        place = sandboxing['place'] = click.get_current_context().with_resource(
            redirecting.reserve())
        expecting = redirecting.expect(place)
    if controls.stop_flag is None:
        gc.set_threshold(COLLECTION_THRESHOLD)  # before the files, which can set another one
        _raise_file_limit()
    loaded = _load(paths, modules, expecting)
    for fault in operatorchecks.find_faults(loaded):
        logger.warning(fault)
    known = controls.vault
    if known is None and 'KOPF_SHARED_SANDBOX' in os.environ:
        from kopf._kits import sandboxing as shared
        known = shared.join()
    if not clusterwide and not namespaces:
        clusterwide = True
        logger.warning(
            "Neither --namespace nor --all-namespaces is given: serving the whole cluster. "
            "In the future, one of them will be required.")

    if sandbox and standalone is None and peering_name is None:
        standalone = True  # no other operators can use a sandbox in this process
    settings = _make_settings(leader_elect=leader_elect, shards=shards)
    if tracing:
        settings.tracing.enabled = True
    if debug_endpoint is not None:
        settings.debugging.endpoint = debug_endpoint
    if release_brakes:
        settings.brakes.released = True
    loop = controls.loop or (_make_fast_loop() if shadow is None else None)
    owning = waiting.owns_process_var.set(True)
    if controls.stop_flag is None:
        gc.freeze()  # full collections block; they are faster without the loaded modules
    try:
        if sandboxing['upstream'] is not None:
            sandboxing['registry'] = loaded
        comparing = None
        if shadow is not None:
            from kopf._kits.shadowing import shadows  # only for this option
            comparing = shadows.Shadow(
                loaded, window=shadow_window, managers=shadow_managers, share=shadow_reviews,
                allowed=allowed)
        if rbac:
            settings.peering.standalone = bool(standalone)
            sandboxing['confined'] = loaded, settings, namespaces
        with _accompany(sandboxing if sandbox else None, known, comparing) as vault:
            running.run(
                standalone=standalone,
                namespaces=namespaces,
                clusterwide=clusterwide,
                priority=DEV_PRIORITY if dev and priority is None else priority,
                peering_name=peering_name,
                liveness_endpoint=liveness_endpoint,
                metrics_endpoint=metrics_endpoint,
                registry=controls.registry,
                settings=settings,
                stop_flag=controls.stop_flag,
                ready_flag=controls.ready_flag,
                vault=vault,
                loop=loop,
                _shadow=comparing,
                _adjust=None if comparing is None else comparing.isolate,
            )
    except (credentials.LoginError, activities.ActivityError, endpoints.EndpointError,
            configuration.SettingsError, registries.RegistryError,
            switches.LeadershipLostError) as e:
        raise click.ClickException(str(e)) from e
    finally:
        waiting.owns_process_var.reset(owning)
        if loop is not None and loop is not controls.loop:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _share_options(*shown: str) -> list[click.Parameter]:
    """
    Copy the options of ``kopf run``, so that its command line can be given to another command.

    The help shows only those that are named: the others have no effect.
    """
    shared = [copy.copy(param) for param in run.params if getattr(param, 'section', None) in (
        'Handlers', 'Peering', 'Leadership', 'Sharding', 'Health')]
    for param in shared:
        if isinstance(param, click.Option):
            param.hidden = param.name not in shown
    return shared


@main.command(
    cls=RunCommand, page='rbac', short_help="Print the least roles of an operator.",
    params=_share_options(
        'modules', 'standalone', 'peering_name', 'leader_elect', 'shards', 'processes'))
@logging_options
@scope_options
@_rights_options
@option('--verify', metavar='FILE|cluster', section='Rights',
        help="Print how the roles in this file differ from the least ones; or what the "
             "cluster does not let the current user do. The exit code is 3 then.")
@_paths_argument
def rbac(
        paths: Collection[str],
        modules: Collection[str],
        namespaces: Collection[str],
        definitions: Collection[pathlib.Path],
        cluster: bool,
        startup: bool,
        verify: str | None,
        **options: Any,
) -> None:
    """
    Print the least roles with which the handlers in PATHS (Python files) and in modules can run,
    with the same options as `kopf run`.

    For example: kopf rbac --all-namespaces --crd crd.yaml handlers.py
    """
    registry = _load(paths, modules)
    settings = _foresee_settings(**options)
    from kopf._kits.typed import rbac, roles  # only for this command

    inquiry = rbac.Inquiry(
        registry=registry, settings=settings, vault=_get_controls().vault, namespaces=namespaces)

    async def show() -> None:
        needed = await inquiry.find(definitions=definitions, cluster=cluster, startup=startup)
        if verify is None:
            made = roles.make_roles(needed, roles.make_name([*paths, *modules]))
            click.echo(roles.dump(made), nl=False)
            return
        lines = [*await inquiry.verify(needed, verify)]
        click.echo('\n'.join(lines) or "The roles are the least ones.")
        if lines:
            raise click.exceptions.Exit(3)

    _run_command(show())


@main.command(page='crd', short_help="Print the definitions of the declared kinds.")
@logging_options
@_modules_option
@option('-o', '--output', metavar='FILE|DIR', section='Definitions',
        type=click.Path(path_type=pathlib.Path),
        help="Write to this file; or to this folder, a file for each definition.")
@option('--drift', metavar='FILE', section='Definitions',
        type=click.Path(path_type=pathlib.Path, exists=True),
        help="Print how this file or folder differs. The exit code is 3 then.")
@option('--against', metavar='FILE|cluster', section='Definitions',
        help="Print what is incompatible with the definitions in this file, or with "
             "those of the cluster. The exit code is 4 then.")
@option('--allow', multiple=True, metavar='RULE:PATH', section='Definitions',
        help="Accept this finding, as it is printed. Can be repeated.")
@option('--lint', is_flag=True, section='Definitions',
        help="Print what the conventions of the API advise against. The exit code is 1 then.")
@option('--kubernetes', metavar='VERSION', section='Definitions',
        help="Print what this version, such as 1.20, does not enforce.")
@option('--peering', is_flag=True, section='Definitions',
        help="Also take the kinds of peerings: ClusterKopfPeering, KopfPeering.")
@option('--apply', is_flag=True, section='Definitions',
        help="Apply the definitions to the cluster, if nothing is wrong.")
@_paths_argument
def crd(
        paths: Collection[str],
        modules: Collection[str],
        output: pathlib.Path | None,
        kubernetes: str | None,
        peering: bool,
        **options: Any,
) -> None:
    """
    Print the definitions of the kinds that are declared by @kopf.crd in PATHS (Python files) and in
    modules; or check them, and apply them to the cluster.

    For example: kopf crd handlers.py -o crd.yaml
    """
    _preload(paths, modules)
    from kopf._kits.typed import publishing  # only for this command
    definitions, minor = _define(kubernetes)
    if peering:
        from kopf._kits.projects import manifests  # only for this option
        definitions += manifests.load_peering_kinds()
    if not definitions:
        raise click.ClickException(
            f"There are no kinds in {', '.join([*paths, *modules]) or 'no file'}. Declare a class "
            f"as a kind, for example: @kopf.crd('example.com', 'v1', plural='databases')")
    checks = publishing.Options(kubernetes=minor, **options)
    controls = _get_controls()

    async def publish() -> None:
        if output is not None:
            publishing.write(definitions, output)
        elif checks == publishing.Options():
            click.echo(publishing.dump(definitions), nl=False)
        report = await publishing.publish(
            definitions, checks, registry=controls.registry, settings=controls.settings,
            vault=controls.vault)
        for line in report.lines:
            click.echo(line)
        if report.code:
            raise click.exceptions.Exit(report.code)

    _run_command(publish())


@main.command(
    cls=RunCommand, page='deployment',
    short_help="Print all that a deployment of an operator needs.",
    params=[param for param in _share_options(
        'modules', 'standalone', 'dev', 'peering_name', 'priority', 'leader_elect', 'shards',
        'processes', 'liveness_endpoint', 'metrics_endpoint', 'tracing', 'debug_endpoint')
        if param.name != 'reload'])
@logging_options
@scope_options
@_rights_options
@option('--image', required=True, metavar='IMAGE', section='Deployment',
        help="Run this image, which contains Kopf and the PATHS.")
@option('--name', metavar='NAME', section='Deployment',
        help="Set the name of the objects. [default: that of the first file]")
@option('--operator-namespace', metavar='NAME', section='Deployment',
        help="Run the operator in this namespace. [default: the name]")
@option('--replicas', type=click.IntRange(1), default=1, show_default=True, metavar='N',
        section='Deployment', help="Run N pods. Several pods need --leader-elect or --shards.")
@option('--pod-monitor', is_flag=True, section='Deployment',
        help="Let the Prometheus Operator find the metrics. The cluster must have its "
             "kind PodMonitor.")
@option('--kubernetes', metavar='VERSION', section='Deployment',
        help="Print what this version takes, such as 1.20. [default: the current one]")
@option('--split', metavar='DIR', section='Deployment', type=click.Path(path_type=pathlib.Path),
        help="Write to this folder instead, a file for each concern.")
@option('--kustomize', is_flag=True, section='Deployment',
        help="Also write a kustomization.yaml. This needs --split.")
@_paths_argument
def manifests(
        paths: Collection[str],
        modules: Collection[str],
        namespaces: Collection[str],
        clusterwide: bool,
        liveness_endpoint: str | None,
        processes: int | None,
        definitions: Collection[pathlib.Path],
        cluster: bool,
        startup: bool,
        image: str,
        name: str | None,
        operator_namespace: str | None,
        replicas: int,
        pod_monitor: bool,
        kubernetes: str | None,
        split: pathlib.Path | None,
        kustomize: bool,
        **options: Any,
) -> None:
    """
    Print all objects that the handlers in PATHS (Python files) and in modules need in a cluster,
    with the same options as `kopf run`.

    For example: kopf manifests -A --image registry.example.com/my-operator:1 handlers.py
    """
    if kustomize and split is None:
        raise click.UsageError("--kustomize needs --split.")
    registry = _load(paths, modules)
    settings = _foresee_settings(processes=processes, **options)
    declared, minor = _define(kubernetes)
    from kopf._kits.projects import files, manifests  # only for this command
    from kopf._kits.typed import rbac, roles
    liveness = liveness_endpoint or manifests.LIVENESS
    args = ([] if clusterwide or namespaces else ['--all-namespaces']) + (
        [] if liveness_endpoint else [f'--liveness={liveness}'])
    args += helpscreens.restore(click.get_current_context(), without={
        param.name for param in click.get_current_context().command.params
        if param.name not in {param.name for param in run.params}})
    name = name or roles.make_name([*paths, *modules])
    plan = manifests.Plan(
        name=name, namespace=operator_namespace or name, image=image, args=args,
        liveness=liveness, namespaces=namespaces, replicas=replicas, processes=processes or 1,
        has_monitor=pod_monitor, minor=minor)

    inquiry = rbac.Inquiry(
        registry=registry, settings=settings, vault=_get_controls().vault, namespaces=namespaces)

    async def show() -> None:
        needed = await inquiry.find(definitions=definitions, cluster=cluster, startup=startup)
        made = manifests.make(
            plan, registry=registry, settings=settings, rights=needed, definitions=declared)
        if split is None:
            click.echo(files.dump(made), nl=False)
        else:
            files.write(made, split, kustomize=kustomize)

    _run_command(show())


@main.command(
    cls=RunCommand, page='sandbox',
    short_help="Serve a Kubernetes API for experiments and tests.")
@logging_options
@option('--port', type=click.IntRange(0, 65535), default=0, metavar='N', section='Sandbox',
        help="Listen on this port. [default: any free port]")
@option('--tls', is_flag=True, section='Sandbox',
        help="Serve HTTPS, with certificates made for this run. It needs the extra "
             "`sandbox` of Kopf.")
@sandbox_options
def sandbox(**options: Any) -> None:
    """
    Serve a Kubernetes API for experiments and tests, until it is stopped.

    For example: kopf sandbox --load examples/crd.yaml
    """
    from kopf._kits import sandboxing
    sandboxing.serve(**options)


@main.command(page='running', short_help="Show what an operator would watch.")
@_modules_option
@_paths_argument
def check(paths: Collection[str], modules: Collection[str]) -> None:
    """
    Show what an operator would watch, and what is wrong with it, without a cluster.

    For example: kopf check handlers.py
    """
    registry = _load(paths, modules)
    for line in operatorchecks.describe(registry):
        click.echo(line)
    faults = list(operatorchecks.find_faults(registry))
    for fault in faults:
        click.echo(f"Error: {fault}", err=True)
    if faults:
        raise click.exceptions.Exit(1)


@main.command(page='troubleshooting', short_help="Explain why handlers are called, or not.")
@logging_options
@_modules_option
@_place_option
@option('--startup', is_flag=True,
        help="Call the startup handlers first, if they change the settings; "
             "and the cleanup handlers at the end.")
@option('--json', 'as_json', is_flag=True, help="Print the explanation as JSON.")
@click.argument('args', nargs=-1, required=True, type=FILE, metavar='[PATHS]... KIND NAME')
def explain(
        args: Sequence[str],
        modules: Collection[str],
        namespace: str | None,
        startup: bool,
        as_json: bool,
) -> None:
    """
    Explain an object of the cluster: its changes, its progress, its finalizers; and for each
    handler in PATHS (Python files), whether Kopf calls it, and why. Nothing is changed.

    For example: kopf explain handlers.py kopfexample kopf-example-1
    """
    if len(args) < 2 or args[-2].endswith('.py'):
        raise click.UsageError(
            "Name the kind and the object. For example: kopf explain handlers.py kopfexample "
            "kopf-example-1")
    controls = _get_controls()
    *paths, kind, name = args
    if name.endswith('.py'):
        raise click.UsageError("The files precede the kind and the name of the object.")
    if paths or modules:
        registry = _load(paths, modules)
    else:
        registry = controls.registry or registries.OperatorRegistry()
    from kopf._kits import explaining  # only for this command

    async def show() -> None:
        explanation = await explaining.explain(
            kind=kind, name=name, namespace=namespace, startup=startup, registry=registry,
            settings=controls.settings, vault=controls.vault)
        click.echo(json.dumps(explanation.as_dict(), indent=2) if as_json
                   else '\n'.join(explanation.describe()))

    _run_command(show())


@main.command(
    page='preview',
    short_help="Preview what an operator would do in a cluster.",
    context_settings={'default_map': {'quiet': True}})
@logging_options
@scope_options
@_modules_option
@option('-l', '--selector', 'labels', metavar='LABELS', default='', section='Scope',
        help="Call the handlers only for the objects with these labels: app=web,!old")
@option('--against', multiple=True, metavar='FILE', section='Plan',
        type=click.Path(dir_okay=False, exists=True),
        help="Print only what differs from what the handlers in this file would do. "
             "Can be repeated.")
@option('-o', '--output', type=click.Choice(['text', 'json', 'markdown']), default='text',
        show_default=True, section='Plan', help="Print the plan in this format.")
@option('--horizon', default='1h', metavar='TIME', show_default=True, section='Plan',
        callback=parse_duration, help="Preview at most this time, for example 90s, 30m, or 1h.")
@option('--context', metavar='NAME', section='Plan',
        help="Read the cluster of this context of the kubeconfig. [default: the current context]")
@option('--allow', multiple=True, metavar='HOST', section='Plan',
        help="Let handlers connect to this host or Unix socket, or run this program. "
             "Can be repeated.")
@option('--fail-on', default='', metavar='LIST', section='Plan', callback=split_effects,
        help="Exit with 1 if anything would be deleted, or pods would restart: deletions,restarts")
@option('--stages', metavar='FILE', section='Plan', type=EXISTING,
        help="Take from this YAML file which statuses objects get from others.")
@_paths_argument
def plan(
        paths: Collection[str],
        modules: Collection[str],
        clusterwide: bool,
        output: str,
        fail_on: Collection[str],
        **options: Any,
) -> None:
    """
    Print what the handlers in PATHS (Python files) and in modules would do in the cluster, by
    default in all namespaces. Nothing is changed. The exit code is 0 if they would do nothing,
    2 if they would change anything, and 1 for errors.

    For example: kopf plan handlers.py --against deployed.py
    """
    from kopf._kits.planning import planning, rendering  # only for this command
    level = logging.getLogger().level
    loggers.add_filter(lambda record: record.levelno >= level)  # the run itself needs all records
    code, threads = 1, threading.enumerate()
    try:
        with _showing(credentials.LoginError, activities.ActivityError, planning.PlanError), (
                contextlib.redirect_stdout(sys.stderr)):  # what handlers print is not the plan
            made = planning.plan(*paths, *modules, origin=_get_controls().vault, **options)
        code = made.get_code(fail_on)
    except loaders.LoadingError as e:
        raise _describe(e) from e
    finally:
        shutdown.exit_regardless(code, threads)  # handlers can hang
    click.echo(rendering.render(made, output, is_colored=sys.stdout.isatty() and _is_colored()))
    raise click.exceptions.Exit(code)


@main.command(short_help="Print a script for completion in a shell.")
@click.argument('shell', type=click.Choice(['bash', 'zsh', 'fish']))
def completion(shell: str) -> None:
    """
    Print a script that completes the commands and options of kopf in a shell.

    For example, in ~/.bashrc: eval "$(kopf completion bash)"
    """
    complete = shell_completion.get_completion_class(shell)
    assert complete is not None
    click.echo(complete(main, {}, 'kopf', '_KOPF_COMPLETE').source())


@main.command(page='peering', short_help="Freeze the operators of a peering.")
@logging_options
@scope_options
@option('-i', '--id', metavar='NAME', section='Peering',
        help="Freeze under this name: `kopf resume` needs it. [default: user@host]")
@option('--dev', is_flag=True, section='Peering', help=f"Use the priority {DEV_PRIORITY}.")
@option('-P', '--peering', 'peering_name', metavar='NAME', required=True, callback=check_name,
        section='Peering', help="Freeze the operators of this peering.")
@option('-p', '--priority', type=int, required=True, default=100, show_default=True, metavar='N',
        section='Peering', help="Freeze the operators of this priority or lower.")
@option('-t', '--lifetime', type=click.IntRange(1), required=True, metavar='SECONDS',
        section='Peering', help="Freeze for this number of seconds.")
@option('-m', '--message', metavar='MESSAGE', section='Peering', help="Leave a message for people.")
def freeze(
        id: str | None,
        dev: bool,
        priority: int,
        message: str | None,
        lifetime: int,
        **where: Any,
) -> None:
    """Freeze the operators of a peering: they handle nothing until resumed."""
    from kopf._kits import commanding  # only for commands
    _change_peering(
        commanding.freeze, identity=id, lifetime=lifetime, message=message,
        priority=DEV_PRIORITY if dev else priority, **where)


@main.command(page='peering', short_help="Resume the operators of a peering.")
@logging_options
@scope_options
@option('-i', '--id', metavar='NAME', section='Peering',
        help="End the freezing under this name. [default: user@host]")
@option('-P', '--peering', 'peering_name', metavar='NAME', required=True, callback=check_name,
        section='Peering', help="Resume the operators of this peering.")
def resume(id: str | None, **where: Any) -> None:
    """Resume the operators of a peering that were frozen."""
    from kopf._kits import commanding  # only for commands
    _change_peering(commanding.resume, identity=id, **where)


def object_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Add what selects the objects of a command."""

    @option('-n', '--namespace', metavar='NAME', callback=check_name,
            help="Take the objects of this namespace. [default: that of the kubeconfig]")
    @option('-A', '--all-namespaces', 'clusterwide', is_flag=True,
            help="Take the objects of all namespaces.")
    @option('-l', '--selector', metavar='LABELS',
            help="Take all objects with these labels, instead of names.")
    @click.argument('kind')
    @click.argument('names', nargs=-1, metavar='[NAME]...')
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = str(kwargs['kind'])
        if '/' in kind:  # as kubectl prints it
            raise click.UsageError(f"Separate the kind and the name: {kind.replace('/', ' ', 1)}")
        if bool(kwargs['names']) == (kwargs['selector'] is not None):
            raise click.UsageError("Name the objects, or select them by --selector" + (
                ", but not both." if kwargs['names'] else "."))
        if kwargs['clusterwide'] and kwargs['namespace'] is not None:
            raise click.UsageError("Use either --namespace or --all-namespaces, but not both.")
        return fn(*args, **kwargs)
    return wrapper


_pausing_option = option(
    '--annotation', metavar='NAME', default=configuration.PausingSettings.annotation,
    show_default=True, help="Use this annotation, if the settings of the operator rename it.")


@main.command(page='pausing', short_help="Pause single objects: their handlers wait.")
@logging_options
@option('--until', metavar='TIME',
        help="End the pause at this time: 2026-12-01T08:00+01:00. Without a zone, it is in UTC. "
             "[default: kopf unpause ends it]")
@option('--reason', default='', metavar='REASON', help="Tell other people why.")
@option('--deletion', type=click.Choice(['allow', 'wait']), default='wait',
        show_default=True, help="Allow deletions in the pause, or let them wait.")
@_pausing_option
@object_options
def pause(until: str | None, reason: str, deletion: str, **options: Any) -> None:
    """
    Pause objects: their handlers wait, except for event handlers, indices, and admission handlers.

    For example: kopf pause kopfexamples obj1 obj2 --reason "Moving the disks"
    """
    from kopf._core.intents import pauses  # only for this command
    from kopf._kits.lifecycle import pausing

    with _showing(ValueError):
        text = pausing.compose(
            reason=reason, until=until, deletion=deletion,
            now=datetime.datetime.now(datetime.UTC))
    _annotate(text, options, done=pauses.parse(text).describe(), known="It was paused so already")


@main.command(page='pausing', short_help="End the pauses of single objects.")
@logging_options
@_pausing_option
@object_options
def unpause(**options: Any) -> None:
    """
    End the pauses of objects: what has changed meanwhile is handled now.

    For example: kopf unpause kopfexamples --all-namespaces --selector app=db
    """
    _annotate(None, options, done="The object is not paused any more", known="It was not paused")


@main.group(page='brakes', short_help="Release what is over the budgets for deletions.")
def brakes() -> None:
    """Release what an operator does not do, as it is over the budgets of settings.brakes."""


@brakes.command(
    'release',
    page='brakes', short_help="Let an operator do all that it wants for some objects.")
@logging_options
@object_options
def release_brakes(**options: Any) -> None:
    """
    Release the brakes of objects for an hour: meanwhile, their handlers can delete owned resources,
    and do whatever else is over the budgets of settings.brakes. Release one object first, and see
    what happens.

    For example: kopf brakes release kopfexamples --all-namespaces --selector ''
    """
    from kopf._core.actions import brakes as budgets  # only for this command

    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    text = f'{until:%Y-%m-%dT%H:%M:%SZ}'
    _annotate(
        text, {**options, 'annotation': budgets.ANNOTATION},
        done=f"The brakes are released until {text}", known="The brakes were released already")


@main.group(page='external', short_help="Record what exists in external systems.")
def external() -> None:
    """Record what exists in external systems, where an operator cannot know it."""


_thing_options = helpscreens.combine(
    _place_option, click.argument('kind'), click.argument('name'), click.argument('id'))


@external.command(page='external', short_help="Let an object have what exists already.")
@logging_options
@option('--key', required=True, metavar='KEY',
        help="Take what has this key in the external system.")
@option('--new', 'is_new', is_flag=True, help="Adopt it for an external that is not declared yet.")
@_thing_options
def adopt(key: str, **options: Any) -> None:
    """
    Let an object have the thing with this key: the operator does not create another one.

    For example: kopf external adopt tenants tenant1 billing --key acct-1234
    """
    _state(key, f"It is adopted by the key {key}", **options)


@external.command(page='external', short_help="Record that nothing exists.")
@logging_options
@_thing_options
def retry(**options: Any) -> None:
    """
    Record that nothing was created for an object: the operator creates it now. Look into the system
    first.

    For example: kopf external retry tenants tenant1 billing
    """
    _state(None, "It is created now", **options)


def _state(
        key: str | None, done: str, *, name: str, id: str, is_new: bool = False, **options: Any,
) -> None:
    from kopf._kits.external import records  # only for these commands
    suffix = records.RETRY if key is None else records.ADOPT
    _annotate(
        'true' if key is None else key,
        {**options, 'names': [name], 'annotation': records.make_name(id, suffix)},
        done=done, known="This was said already",
        check=lambda raw: records.find_contradiction(raw, id, key, is_new=is_new))


def _annotate(text: str | None, options: dict[str, Any], **answers: Any) -> None:
    from kopf._kits.lifecycle import annotating  # only for these commands
    _sweep('annotated', lambda sweep: annotating.annotate(
        sweep, text, annotating.Options(**options), **answers))


@main.command(
    cls=RunCommand, page='uninstall',
    short_help="Release the objects of an operator, to uninstall it.")
@logging_options
@scope_options
@option('--finalizer', metavar='NAME', show_default=True,
        default=configuration.PersistenceSettings.finalizer,
        help="Remove this finalizer, if the operator sets another one.")
@option('--annotations', is_flag=True, help="Also remove the annotations of the operator.")
@option('--prefix', 'prefixes', multiple=True, metavar='NAME', show_default=True,
        default=[conventions.DEFAULT_PREFIX],
        help="Remove all annotations with this prefix. Can be repeated.")
@option('--deleting', is_flag=True,
        help="Also release the objects that are being deleted: they vanish without "
             "their deletion handlers.")
@option('--dry-run', is_flag=True, help="Write nothing, and show what would be done.")
@option('--force', is_flag=True, help="Do not check whether the operator still runs.")
@option('-P', '--peering', 'peering_name', metavar='NAME', section='Peering', callback=check_name,
        default='default', show_default=True,
        help="Refuse to start if an operator is in this peering.")
@option('--leader-elect', metavar='[=NAME]', section='Leadership', callback=name_lease,
        default=LEASE, show_default=True,
        help="Refuse to start if somebody holds this Lease, or shards of this name.")
@click.argument('kinds', nargs=-1, required=True, metavar='KIND...')
def release(
        kinds: Collection[str],
        namespaces: Collection[str],
        clusterwide: bool,
        annotations: bool,
        prefixes: Collection[str],
        peering_name: str,
        leader_elect: str | None,
        **options: Any,
) -> None:
    """
    Release all objects of the kinds: remove the finalizers of the operator, so that the objects can
    be deleted when it is gone. Stop the operator first.

    For example: kopf release --all-namespaces kopfexamples
    """
    if not clusterwide and not namespaces:
        raise click.UsageError("Add --namespace or --all-namespaces.")
    from kopf._kits.lifecycle import releasing  # only for this command
    wanted = releasing.Options(
        prefixes=prefixes if annotations else (), peering=peering_name, lease=leader_elect,
        **options)
    _sweep('released', lambda sweep: releasing.release(
        sweep, kinds, wanted, clusterwide=clusterwide, namespaces=namespaces))


@main.command(page='versions', short_help="Store all objects in the present storage version.")
@logging_options
@click.argument('kind')
def migrate(kind: str) -> None:
    """
    Store all objects of a custom resource in its present storage version, so that the other
    versions can be removed from its definition.

    For example: kopf migrate kopfexamples
    """
    from kopf._kits.lifecycle import migrating  # only for this command
    _sweep('migrated', lambda sweep: migrating.migrate(sweep, kind))


def _sweep(what: str, fn: Callable[[Any], Coroutine[None, None, bool]]) -> None:
    """Run a command that goes over all objects of the cluster; exit with 1 if something is left."""
    from kopf._kits.lifecycle import sweeping
    controls = _get_controls()

    async def act() -> None:
        async with sweeping.begin(
                what, say=click.echo, registry=controls.registry, settings=controls.settings,
                vault=controls.vault) as sweep:
            if not await fn(sweep):
                raise click.exceptions.Exit(1)

    _run_command(act())


def _change_peering(fn: Callable[..., Coroutine[None, None, None]], **options: Any) -> None:
    if not options['clusterwide'] and not options['namespaces']:
        options['clusterwide'] = True
        logger.warning(
            "Neither --namespace nor --all-namespaces is given: the operators of the whole cluster "
            "are meant. In the future, one of them will be required.")
    controls = _get_controls()
    _run_command(fn(
        registry=controls.registry, settings=controls.settings, vault=controls.vault, **options))


def _run_command(command: Coroutine[None, None, None]) -> None:
    from kopf._kits import commanding  # only for commands
    controls = _get_controls()
    with _showing(credentials.LoginError, commanding.CommandError, activities.ActivityError):
        running.run(settings=controls.settings, loop=controls.loop, clusterwide=True,
                    _command=command)


def _make_settings(
        *, leader_elect: str | None, shards: int | None,
) -> configuration.OperatorSettings:
    settings = _get_controls().settings or configuration.OperatorSettings()
    if leader_elect is not None:
        with _showing(ValueError):
            settings.leadership.name = leader_elect
    if shards is not None:
        settings.sharding.count = shards
    return settings


def _foresee_settings(
        *,
        standalone: bool | None,
        peering_name: str | None,
        leader_elect: str | None,
        shards: int | None,
        processes: int | None,
        metrics_endpoint: str | None,
        **_: Any,
) -> configuration.OperatorSettings:
    """Make the settings that an operator will have by these options of ``kopf run``."""
    if shards is None and processes is not None and processes > 1:
        shards = SHARDS
    settings = _make_settings(leader_elect=leader_elect, shards=shards)
    if standalone is not None:
        settings.peering.standalone = standalone
    if peering_name is not None:
        settings.peering.name, settings.peering.mandatory = peering_name, True
    if metrics_endpoint is not None:
        settings.metrics.endpoint = metrics_endpoint
    return settings


def _define(kubernetes: str | None) -> tuple[list[dict[str, Any]], int | None]:
    """Make the definitions of all declared kinds, and get the minor version of Kubernetes."""
    from kopf._kits.typed import enforcement, kinds
    with _showing(TypeError, ValueError):
        return (kinds.define(kinds.get_declared()),
                None if kubernetes is None else enforcement.parse_version(kubernetes))


def _preload(
        paths: Collection[str],
        modules: Collection[str],
        expecting: contextlib.AbstractContextManager[None] | None = None,
) -> None:
    """Import the files and modules: where nothing else is expected, also without a kubeconfig."""
    if expecting is None:
        from kopf._kits import redirecting  # not for an operator on a cluster
        expecting = redirecting.fill_in()
    try:
        with expecting:
            _get_controls().load(paths=paths, modules=modules)
    except loaders.LoadingError as e:
        raise _describe(e) from e


def _load(
        paths: Collection[str],
        modules: Collection[str],
        expecting: contextlib.AbstractContextManager[None] | None = None,
) -> registries.OperatorRegistry:
    """Load the handlers; it is an error if there are none."""
    _preload(paths, modules, expecting)
    known = _get_controls().registry
    registry = registries.get_default_registry() if known is None else known
    if registry.is_empty:
        if not paths and not modules:
            raise click.UsageError(
                "No file or module with handlers is given. For example: kopf run -A handlers.py")
        raise click.ClickException(
            f"There are no handlers in {', '.join([*paths, *modules])}. Decorate functions as "
            f"handlers, for example: @kopf.on.create('kopfexamples')")
    return registry


def _reload(
        paths: Collection[str],
        modules: Collection[str],
        sandboxing: dict[str, Any] | None,
        *,
        is_alone: bool,
) -> NoReturn:
    """Run the same command in a child process, restart it on changes, and exit with its code."""
    from kopf._kits import reloading
    named = {pathlib.Path(path).absolute() for path in paths}
    named |= {pathlib.Path(name.partition('.')[0]).absolute() for name in modules}
    args = ['run', *helpscreens.hand_over(
        click.get_current_context(), without={'reload', 'sandbox', *(sandboxing or ())})]
    if sandboxing is not None and is_alone:
        args.insert(1, '--standalone')
    with _accompany(sandboxing):
        code = reloading.run(args, paths=named)
    raise click.exceptions.Exit(code)


def _supervise(
        number: int,
        shards: int | None,
        sandboxing: dict[str, Any] | None,
        served: Mapping[str, str | None],
) -> NoReturn:
    """Run the same command in several processes, and exit with their code."""
    from kopf._kits import supervising
    args = ['run', '--processes=1', f'--shards={SHARDS if shards is None else shards}']
    if sandboxing is not None:
        args.append('--standalone')
    args += helpscreens.hand_over(click.get_current_context(), without={
        'processes', 'shards', 'liveness_endpoint', 'metrics_endpoint', 'debug_endpoint', 'sandbox',
        *(sandboxing or ())})
    with _accompany(sandboxing), _showing(endpoints.EndpointError):
        code = supervising.run(args, number=number, served={
            option: url for option, url in served.items() if url is not None})
    raise click.exceptions.Exit(code)


def _accompany(
        options: dict[str, Any] | None, vault: vaults.Vault | None = None,
        shadow: Any = None,
) -> contextlib.AbstractContextManager[vaults.Vault | None]:
    """Serve a sandbox with these options, and yield its credentials; without it, yield others."""
    if options is None:
        return contextlib.nullcontext(vault)
    from kopf._kits import sandboxing
    accompany = sandboxing.accompany if shadow is None else shadow.accompany
    return accompany(**options, namespaces=click.get_current_context().params['namespaces'])


def _describe(e: loaders.LoadingError) -> click.ClickException:
    return click.ClickException('\n'.join(filter(None, [
        str(e), e.details.rstrip(), *getattr(e, '__notes__', ())])))


def _raise_file_limit() -> None:
    """Let the process open as many files as the system allows: each watch has a connection."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # e.g. there is none on Windows
        import resource
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _make_fast_loop() -> asyncio.AbstractEventLoop | None:
    try:
        import uvloop
    except ImportError:
        return None
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
