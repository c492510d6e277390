"""
Versions of an operator of several files, in folders of their own.
"""
import pathlib
import sys
import uuid

import pytest

from kopf import testing

MAIN = '''
import os
import kopf
import parts
from values import CALLS

@kopf.reconcile('kopfexamples', owns=['configmaps'])
async def child(name, **_):
    import late
    CALLS.inc()
    yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
           'data': {'n': parts.inner.VALUE + late.VALUE}}
'''
VALUES = '''
import prometheus_client
CALLS = prometheus_client.Counter('NAME', 'How often it was called.')
'''


@pytest.fixture(autouse=True)
def unchanged():
    modules, path = sys.modules.copy(), sys.path[:]
    yield
    for name in {*sys.modules} - {*modules}:
        if name.partition('.')[0] in ('values', 'late', 'parts'):
            del sys.modules[name]
    assert {name for name in modules if sys.modules.get(name) is not modules[name]} <= {
        name for name in modules if name.startswith('__kopf_script_')}
    sys.path[:] = path


def write(folder: pathlib.Path, value, name):
    (folder / 'parts').mkdir(parents=True)
    (folder / 'parts' / '__init__.py').write_text('from . import inner')
    (folder / 'parts' / 'inner.py').write_text(f'VALUE = {value!r}')
    (folder / 'late.py').write_text(f'VALUE = {value!r}')
    (folder / 'values.py').write_text(VALUES.replace('NAME', name))
    (folder / 'main.py').write_text(MAIN)
    return folder / 'main.py'


@pytest.fixture(params=['beside', 'inside'])
def versions(request, tmp_path):
    name = f'calls_{uuid.uuid4().hex}'  # the library refuses those of former tests
    path = tmp_path / ('old' if request.param == 'beside' else 'new/old')
    return write(tmp_path / 'new', 'new', name), write(path, 'old', name)


@pytest.mark.usefixtures('parent')
def test_each_version_has_the_modules_of_its_folder(cluster, versions):
    new, old = versions
    made = testing.plan(new, against=[old], origin=cluster.credentials)
    item, = made.items
    assert [(field.path, field.old, field.new) for field in item.fields] == [
        ('data.n', 'oldold', 'newnew')]
    assert not made.failures


@pytest.mark.usefixtures('parent')
def test_modules_that_the_test_has_imported_stay(cluster, versions, monkeypatch):
    new, old = versions
    monkeypatch.syspath_prepend(new.parent)
    import late  # type: ignore[import-not-found]
    late.VALUE = 'changed'
    item, = testing.plan(new, against=[old], origin=cluster.credentials).items
    assert [field.new for field in item.fields] == ['newchanged']
    assert sys.modules['late'] is late


@pytest.mark.usefixtures('parent')
def test_versions_in_the_same_folder_share_its_modules(cluster, versions):
    new, _ = versions
    other = new.with_name('other.py')
    other.write_text(MAIN)
    made = testing.plan(new, against=[other], origin=cluster.credentials)
    assert not made.items
    assert not made.failures


@pytest.fixture(params=['', 'src'])
def projects(request, tmp_path):
    """Two checkouts of a project, whose package is installed from the first one."""
    for name in ('new', 'old'):
        package = tmp_path / name / request.param / 'values'
        package.mkdir(parents=True)
        (package / '__init__.py').write_text(f'VALUE = {name!r}')
        operators = tmp_path / name / 'operators'
        operators.mkdir()
        (operators / 'main.py').write_text(PACKAGED)
        (tmp_path / name / 'pyproject.toml').touch()
    sys.path.append(str(tmp_path / 'new' / request.param))
    return [tmp_path / name / 'operators' / 'main.py' for name in ('new', 'old')]


PACKAGED = '''
import kopf
import values

@kopf.reconcile('kopfexamples', owns=['configmaps'])
async def child(name, **_):
    yield {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name},
           'data': {'n': values.VALUE}}
'''


@pytest.mark.usefixtures('parent')
def test_each_version_has_the_packages_of_its_project(cluster, projects):
    new, old = projects
    made = testing.plan(new, against=[old], origin=cluster.credentials)
    item, = made.items
    assert [(field.old, field.new) for field in item.fields] == [('old', 'new')]
    assert not made.failures
