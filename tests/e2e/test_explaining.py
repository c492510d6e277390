"""
The command that explains objects: it says what the operator has done and is going to do.
"""
import json
import subprocess
import sys

import pytest

from tests.e2e.kubes import Kind

HANDLERS = '''
@kopf.on.startup()
def configure(settings, **_):
    settings.persistence.finalizer = 'example.com/own'

@kopf.on.create(*KIND)
def created(**_):
    raise kopf.TemporaryError("the database is away", delay=3600)

@kopf.on.create(*KIND, labels={'some': 'label'})
def labelled(**_):
    pass

@kopf.on.delete(*KIND)
def deleted(**_):
    pass
'''


@pytest.fixture()
def script(kind, tmp_path):
    path = tmp_path / 'handlers.py'
    path.write_text(f'import kopf\nKIND = {kind.selector!r}\n{HANDLERS}')
    return path


def run(cluster, *args):
    return subprocess.run(
        [sys.executable, '-m', 'kopf', 'explain', '-q', *map(str, args)], check=False,
        capture_output=True, text=True, env={'KUBECONFIG': str(cluster), 'PATH': '/usr/bin:/bin'})


async def test_objects_are_explained_by_the_handlers(kube, kind, operator, script, cluster):
    op = operator(HANDLERS, kind=kind)
    await kube.create(kind, 'obj', spec={'field': 1})
    await op.wait_for("will try again|Sleeping|the database is away")
    await kube.wait_for(
        kind, 'obj', lambda obj: 'kopf.zalando.org/created' in obj['metadata']['annotations'])
    before = await kube.get(kind, 'obj')

    done = run(cluster, '--startup', '--json', script, kind.plural, 'obj')
    assert (done.returncode, done.stderr) == (0, '')
    found = json.loads(done.stdout)
    assert (found['kind'], found['namespace'], found['name'], found['cause']) == (
        kind.kind, 'default', 'obj', 'create')
    verdicts = {item['id']: (item['is_called'], item['because']) for item in found['handlers']}
    assert verdicts['created'][0]
    assert verdicts['created'][1].startswith("it waits until ")
    assert verdicts['created'][1].endswith("before the attempt 2: the database is away")
    assert verdicts['labelled'] == (False, "the label 'some' is absent, but must be 'label'")
    assert verdicts['deleted'] == (False, "it is for deletions, but this is a creation")
    assert found['finalizers'] == {'example.com/own': "of this operator, needed by: delete deleted"}
    assert [(item['id'], item['attempts']) for item in found['progress']] == [('created', 1)]
    assert found['next'].startswith("the operator waits until ")
    assert await kube.get(kind, 'obj') == before


async def test_objects_are_explained_without_handlers(kube, kind, cluster):
    progress = {'started': '2020-01-01T00:00:00+00:00', 'retries': 1, 'failure': True,
                'message': 'no way'}
    await kube.create(kind, 'obj', annotations={
        'kopf.zalando.org/fn': json.dumps(progress),
        'kopf.zalando.org/last-handled-configuration': json.dumps({'spec': {'x': 1}})},
        spec={'x': 2})
    done = run(cluster, kind.kind, 'obj', '-n', 'default')
    assert (done.returncode, done.stderr) == (0, '')
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{kind.kind} default/obj, version ")
    assert "Cause: update" in lines
    assert "  spec.x has changed: 1 -> 2" in lines
    assert "  kopf.zalando.org/fn: it has failed permanently for this change: no way" in lines


@pytest.mark.parametrize(('name', 'message'), [
    (None, "The cluster has no such resource as 'nonexistents'."),
    ('absent', "There is no {kind} 'absent' in the namespace 'default'."),
])
async def test_what_is_not_there_is_said_in_a_line(kind: Kind, cluster, name, message):
    done = run(cluster, *(('nonexistents', 'obj') if name is None else (kind.plural, name)))
    assert done.returncode == 1
    assert done.stderr == f"Error: {message.format(kind=kind.kind)}\n"
