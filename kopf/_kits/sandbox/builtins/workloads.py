"""
What is wrong with pods, and with all that makes pods by templates.
"""
from collections.abc import Iterator, Mapping
from typing import Any

from kopf._kits.sandbox import naming, selecting, statuses, wordings

Causes = Iterator[statuses.Cause]

MISMATCH = "`selector` does not match template `labels`"
RESTARTS = '"OnFailure", "Never"'


def check_pods(obj: statuses.Obj, field: str = 'spec', restarts: str = '') -> Causes:
    """Pods, or the field with the spec of pods; these can be ones that restart always, or end."""
    spec = statuses.dig(obj, field) or {}
    if not spec.get('containers'):
        yield wordings.required(f'{field}.containers')
    names: set[str] = set()
    for part in ('containers', 'initContainers'):
        for index, container in enumerate(spec.get(part) or ()):
            yield from _check_container(container, f'{field}.{part}[{index}]', names)
    policy = spec.get('restartPolicy')
    supported = ("Always", "OnFailure", "Never")
    if policy not in supported:
        yield wordings.unsupported(f'{field}.restartPolicy', policy, supported)
    if restarts == 'always' and policy != 'Always':
        yield wordings.unsupported(f'{field}.restartPolicy', policy, ["Always"])
    if restarts == 'ends' and policy == 'Always':
        yield wordings.required(f'{field}.restartPolicy', f'valid values: {RESTARTS}')


def _check_container(container: Mapping[str, Any], field: str, names: set[str]) -> Causes:
    name = container.get('name') or ''
    if not name:
        yield wordings.required(f'{field}.name')
    elif name in names:
        yield wordings.duplicate(f'{field}.name', name)
    else:
        yield from wordings.all_invalid(f'{field}.name', name, naming.check_label(name))
    names.add(name)
    if not container.get('image'):
        yield wordings.required(f'{field}.image')
    for index, port in enumerate(container.get('ports') or ()):
        number = port.get('containerPort') or 0
        if not number:
            yield wordings.required(f'{field}.ports[{index}].containerPort')
        elif not 0 < number < 65536:
            yield wordings.invalid(f'{field}.ports[{index}].containerPort', number,
                                 "must be between 1 and 65535, inclusive")
    for index, variable in enumerate(container.get('env') or ()):
        if not variable.get('name'):
            yield wordings.required(f'{field}.env[{index}].name')


def check_workload(obj: statuses.Obj) -> Causes:
    """Deployments and the like: pods by a template, found by a selector."""
    spec = obj['spec']
    if spec.get('replicas', 0) < 0:
        yield wordings.invalid(
            'spec.replicas', spec['replicas'], "must be greater than or equal to 0")
    selector = spec.get('selector')
    if selector is None:
        yield wordings.required('spec.selector')
    elif not selector:
        yield wordings.invalid(
            'spec.selector', selector, "empty selector is invalid for deployment")
    problems = list(selecting.check_expressions(selector, 'spec.selector'))
    if problems:
        yield from problems
        yield wordings.invalid('spec.selector', selector, "invalid label selector")
    labels = statuses.dig(spec, 'template.metadata.labels')
    if not problems and (
            not selector or not selecting.labels_of(selector).matches(labels)):
        yield wordings.invalid('spec.template.metadata.labels', labels, MISMATCH)
    yield from check_pods(obj, 'spec.template.spec', 'always')
    strategy = spec.get('strategy') or {}
    if strategy.get('type') == 'Recreate' and 'rollingUpdate' in strategy:
        yield wordings.forbidden('spec.strategy.rollingUpdate',
                               "may not be specified when strategy `type` is 'Recreate'")


def check_job(job: statuses.Obj) -> Causes:
    return check_pods(job, 'spec.template.spec', 'ends')


def check_cron_job(job: statuses.Obj) -> Causes:
    spec = job['spec']
    schedule = spec.get('schedule') or ''
    fields = schedule.split()
    if not schedule:
        yield wordings.required('spec.schedule')
    elif len(fields) != 5 and not schedule.startswith('@'):
        yield wordings.invalid(
            'spec.schedule', schedule,
            f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]")
    yield from check_pods(job, 'spec.jobTemplate.spec.template.spec', 'ends')
    name = job['metadata'].get('name', '')
    if len(name) > 52:
        yield wordings.invalid('metadata.name', name, "must be no more than 52 characters")
