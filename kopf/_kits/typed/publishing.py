"""
What ``kopf crd`` does with definitions: compare them with others, check them, apply them.
"""
import contextlib
import dataclasses
import difflib
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import api, applying, errors, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.helpers import yamltexts
from kopf._cogs.structs import references
from kopf._core.intents import registries
from kopf._kits import commanding
from kopf._kits.typed import catalogue, compatibility, enforcement, linting
from kopf._kits.typed.findings import LINT, RULES, Definition, Finding, find

CLUSTER = 'cluster'
"""What to compare with, instead of a file."""

MANAGER = 'kopf'
"""The field manager of the applied definitions, as of all that Kopf writes."""

LINTED, DRIFTED, INCOMPATIBLE = 1, 3, 4
"""The exit codes."""

UNCONVERTED = ('conversion-removed', 'versions-differ')
"""The rules about definitions whose objects nothing converts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """
    The options of ``kopf crd`` for what is more than printing.

    ``against`` is a file, a folder, or ``cluster``; ``drift`` is a file or a folder; ``allow`` has
    items such as ``RULE:PATH``; ``kubernetes`` is a minor version.
    """

    against: str | None = None
    allow: Collection[str] = ()
    drift: pathlib.Path | None = None
    lint: bool = False
    kubernetes: int | None = None
    apply: bool = False


def dump(definitions: Sequence[Definition]) -> str:
    """Make the YAML of the definitions, fit for git: the same order each time, and no status."""
    return yamltexts.dump_all(definitions, explicit_start=len(definitions) > 1)


def write(definitions: Sequence[Definition], path: pathlib.Path) -> None:
    """
    Write the definitions to a file; or to a folder that exists, a file for each of them.

    :raises CommandError: if it cannot be written.
    """
    try:
        if path.is_dir():
            for definition in definitions:
                name = f'{definition["metadata"]["name"]}.yaml'
                path.joinpath(name).write_text(dump([definition]), 'utf-8')
        else:
            path.write_text(dump(definitions), 'utf-8')
    except OSError as e:
        raise commanding.CommandError(f"{path} cannot be written: {e}") from e


@dataclasses.dataclass(frozen=True)
class Report:
    """What to print, and the exit code: 0 if nothing is wrong."""

    lines: Sequence[str]
    code: int


def check(
        definitions: Sequence[Definition],
        options: Options,
        *,
        existing: Sequence[Definition] = (),
        minor: int | None = None,
        converted: Collection[str] = (),
) -> Report:
    """
    Check definitions as the options say.

    ``existing`` are the definitions of the cluster, if it is the cluster to compare with; ``minor``
    is its minor version of Kubernetes, unless the options have one. The ``converted`` definitions
    are those that the operator completes with the address of its webhook.

    :raises CommandError: if a file cannot be read, or if ``--allow`` names an unknown rule.
    """
    if unknown := sorted(each for each in options.allow if each.partition(':')[0] not in RULES):
        raise commanding.CommandError(
            f"There is no such rule as in --allow={unknown[0]}. Write RULE:PATH, with one of the "
            f"rules {', '.join(RULES)}")
    if options.against not in (None, CLUSTER):
        existing = read(pathlib.Path(options.against))
    minor = minor if options.kubernetes is None else options.kubernetes
    declared, found = _by_name(definitions), []
    for name, old in _by_name(existing).items():
        if name in declared:
            found += _compare(old, declared[name], minor)
        else:
            found.append(find('definition-removed', name, "The kind is not declared any more."))
    for definition in definitions:
        found += linting.lint(definition) if options.lint else ()
        if options.kubernetes is not None:
            found += enforcement.find_unenforced(definition, options.kubernetes)
    found = [each for each in found
             if each.rule not in UNCONVERTED or each.path.partition('/')[0] not in converted]
    lines = [f"allowed: {finding}" if finding.key in options.allow else str(finding)
             for finding in found]
    lines += [f"note: --allow={key} is not needed: there is no such finding."
              for key in options.allow if key not in {finding.key for finding in found}]
    codes = {finding.key: _get_code(finding) for finding in found
             if finding.key not in options.allow}
    if example := next((key for key, code in codes.items() if code == INCOMPATIBLE), None):
        lines.append(f"Make incompatible changes in a new version. To accept one nevertheless: "
                     f"--allow='{example}'")
    drift = [*_find_drift(definitions, options.drift)] if options.drift is not None else []
    return Report([*lines, *drift], max([*codes.values(), DRIFTED if drift else 0]))


def _compare(old: Definition, new: Definition, minor: int | None) -> list[Finding]:
    """Compare what the version of Kubernetes enforces, or all if the version is not known."""
    if minor is None:
        return compatibility.compare(old, new)
    old, new = (enforcement.remove_ignored(each, minor) for each in (old, new))
    return compatibility.compare(old, new, ratcheting=minor >= enforcement.RATCHETING_SINCE)


def _get_code(finding: Finding) -> int:
    if finding.level == 'error':
        return INCOMPATIBLE
    return LINTED if RULES[finding.rule] in LINT else 0


def _find_drift(definitions: Sequence[Definition], path: pathlib.Path) -> Iterator[str]:
    """Find what the file has in another way than the code, as a diff."""
    declared, written = _by_name(definitions), _by_name(read(path))
    for name in sorted({*declared, *written}):
        before, after = (_dump(there[name]).splitlines() if name in there else []
                         for there in (written, declared))
        yield from difflib.unified_diff(
            before, after, f'{path}: {name}', f'declared: {name}', lineterm='')


def _dump(definition: Definition) -> str:
    """Get the text of a definition without what the cluster adds."""
    metadata = {**definition['metadata']}
    metadata.pop('creationTimestamp', None)
    content = {key: value for key, value in definition.items() if key != 'status'}
    return yamltexts.dump_all([{**content, 'metadata': metadata}])


def _by_name(definitions: Sequence[Definition]) -> dict[str, Definition]:
    return {definition['metadata']['name']: definition for definition in definitions}


def read(path: pathlib.Path) -> list[Definition]:
    """
    Read the definitions of a YAML file, or of those of a folder. Other objects are ignored.

    :raises CommandError: if there are none, or they are not of ``apiextensions.k8s.io/v1``.
    """
    paths = sorted(path.glob('*.y*ml')) if path.is_dir() else [path]
    definitions = [obj for obj in catalogue.read_files(paths) if isinstance(obj, Mapping)
                   and obj.get('kind') == 'CustomResourceDefinition']
    if not definitions:
        raise commanding.CommandError(f"{path} has no CustomResourceDefinition in it.")
    for definition in definitions:
        if not _is_complete(definition):
            raise commanding.CommandError(
                f"{path} has a CustomResourceDefinition that is incomplete, or not of "
                f"apiextensions.k8s.io/v1. Write it again: kopf crd FILE... -o {path}")
    return definitions


def _is_complete(obj: Any) -> bool:
    match obj:
        case {'apiVersion': 'apiextensions.k8s.io/v1', 'metadata': {'name': str()}, 'spec': {
                'names': {'kind': str()}, 'scope': str(), 'versions': list(versions)}}:
            return all(map(_is_version, versions))
    return False


def _is_version(obj: Any) -> bool:
    match obj:
        case {'name': str(), 'served': bool(), 'storage': bool(), 'schema': {
                'openAPIV3Schema': dict()}}:
            return True
    return False


async def publish(
        definitions: Sequence[Definition],
        options: Options,
        *,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> Report:
    """
    Check definitions as `check` does, also against those of the cluster; then apply them, if the
    options say so, and nothing is wrong. The report lists what the cluster does not enforce of
    what is applied. The cluster is not asked without need.

    :raises CommandError: as `check` does, or if the API server refuses something.
    :raises LoginError: if there are no credentials.
    """
    registry = registry if registry is not None else registries.get_default_registry()
    converted = registry._converters
    if options.against != CLUSTER and not options.apply:
        return check(definitions, options, converted=converted)
    settings = settings if settings is not None else configuration.OperatorSettings()
    try:
        async with commanding.connect(
                registry=registry, settings=settings, vault=vault) as (client, _):
            version = await client.request('GET', '/version')
            minor = enforcement.parse_version(version['gitVersion'])
            names = _by_name(definitions) if options.against == CLUSTER else ()
            existing = [found for name in names if (found := await _fetch(client, name))]
            report = check(definitions, options, existing=existing, minor=minor,
                           converted=converted)
            if not options.apply or report.code:
                return report
            for definition in definitions:
                await _check_storage(client, definition)
            lines = [str(finding) for definition in definitions if options.kubernetes != minor
                     for finding in enforcement.find_unenforced(definition, minor)]
            lines += [await _apply(client, enforcement.remove_ignored(definition, minor))
                      for definition in definitions]
            return Report([*report.lines, *lines], 0)
    except errors.APIError as e:
        raise commanding.CommandError(f"The definitions cannot be read or applied: {e}") from e


async def compare(client: api.Client, definition: Definition) -> str | None:
    """
    Say in a line if the cluster has another definition; None if it has the same one, or none.

    :raises APIError: if the definition cannot be read.
    """
    name = definition['metadata']['name']
    listed = await client.request(  # operators can list them, but not get them
        'GET', references.CRDS.get_url(), params={'fieldSelector': f'metadata.name={name}'})
    if not listed['items'] or _has(listed['items'][0], definition):
        return None
    version = await client.request('GET', '/version')  # of what an old one has dropped silently
    minor = enforcement.parse_version(version['gitVersion'])
    if _has(listed['items'][0], enforcement.remove_ignored(definition, minor)):
        return None
    return (f"The cluster has another definition of {name} than the code. To see how they differ: "
            f"kopf crd FILE... --against=cluster")


def _has(found: Definition, expected: Definition) -> bool:
    return all(found['spec'].get(key) == value for key, value in expected['spec'].items())


async def _fetch(client: api.Client, name: str) -> Definition | None:
    with contextlib.suppress(errors.APINotFoundError):
        found: Definition = await client.request('GET', f'{references.CRDS.get_url()}/{name}')
        return found
    return None


async def _check_storage(client: api.Client, definition: Definition) -> None:
    """
    Check that objects are converted before they are stored in another version.

    Without conversion, they would be stored in the new version with the fields of the former one.
    """
    name, versions = definition['metadata']['name'], definition['spec']['versions']
    found = await _fetch(client, name) if len(versions) > 1 else None
    if found is None or found['spec'].get('conversion', {}).get('strategy', 'None') != 'None':
        return
    [old], [new] = (
        [version for version in each['spec']['versions'] if version['storage']]
        for each in (found, definition))
    if old['name'] != new['name'] and old['schema'] != new['schema']:
        raise commanding.CommandError(
            f"{name} cannot be stored as {new['name']} before its objects are converted: the "
            f"strategy of its conversion is None. Keep storage=True for {old['name']} until the "
            f"operator with kopf.convert runs, then apply the definition again.")


class ConflictError(commanding.CommandError):
    """Others manage the fields of a definition."""


async def _apply(client: api.Client, definition: Definition) -> str:
    name = definition['metadata']['name']
    try:
        await applying.apply(
            client, resource=references.CRDS, manifest=definition, manager=MANAGER, force=False)
    except errors.APIConflictError as e:
        raise ConflictError(
            f"{name} cannot be applied, as others manage the same fields: {e} To take the fields "
            f"over: kopf crd FILE... | kubectl apply --server-side --force-conflicts "
            f"--field-manager={MANAGER} -f -") from e
    return f"Applied {name}."
