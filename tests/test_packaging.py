"""What is built for a package index and for others who package: offline, with hatchling alone."""
import email
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
REPOSITORY = 'https://git.example.com/kopf'
TARGETS = re.compile(r'\]\(([^)]*)\)')
CODE = re.compile(r'^```.*?^```$', re.MULTILINE | re.DOTALL)


def build(target, folder, *, source=ROOT, repository=None):
    env = {name: val for name, val in os.environ.items() if name != 'KOPF_REPOSITORY'}
    if repository:
        env['KOPF_REPOSITORY'] = repository
    command = [
        sys.executable, '-m', 'hatchling', 'build', '--target', target, '--directory', folder]
    subprocess.run(command, cwd=source, env=env, check=True, stdout=subprocess.DEVNULL)
    path, = folder.iterdir()
    return path


def unpack(archive, folder):
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, 'data_filter'):  # since Python 3.11.4
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
    path, = folder.iterdir()
    return path


def read_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name, = [name for name in archive.namelist() if name.endswith('.dist-info/METADATA')]
        return email.message_from_bytes(archive.read(name))


def get_targets(metadata):
    return TARGETS.findall(CODE.sub('', metadata.get_payload()))


@pytest.mark.parametrize('repository', [REPOSITORY, f'{REPOSITORY}/', f'{REPOSITORY}.git'])
def test_links_of_the_description_lead_to_the_repository(tmp_path, repository):
    metadata = read_metadata(build('wheel', tmp_path, repository=repository))
    targets = get_targets(metadata)
    assert f'{REPOSITORY}/raw/main/docs/_static/demo-plan.svg' in targets
    assert f'{REPOSITORY}/blob/main/docs/quickstart.md' in targets
    assert [target for target in targets if not target.startswith('https://')] == []
    assert f'Source, {REPOSITORY}' in metadata.get_all('Project-URL')


def test_a_description_without_a_repository_has_no_empty_links(tmp_path):
    metadata = read_metadata(build('wheel', tmp_path))
    assert [target for target in get_targets(metadata) if not target.startswith('https://')] == []
    assert '![' not in metadata.get_payload()
    assert "@kopf.reconcile('websites', owns=['configmaps'])" in metadata.get_payload()
    assert metadata.get_all('Project-URL') is None


@pytest.mark.parametrize('repository', [REPOSITORY, None])
def test_a_source_archive_builds_the_same_wheel(tmp_path, repository):
    for name in ('archive', 'source', 'wheel'):
        (tmp_path / name).mkdir()
    archive = build('sdist', tmp_path / 'archive', repository=repository)
    source = unpack(archive, tmp_path / 'source')
    metadata = read_metadata(build('wheel', tmp_path / 'wheel', source=source))
    published = email.message_from_bytes((source / 'PKG-INFO').read_bytes())
    assert metadata.as_string() == published.as_string()


def test_licence_and_notice_are_in_the_wheel(tmp_path):
    with zipfile.ZipFile(build('wheel', tmp_path)) as archive:
        names = archive.namelist()
    assert {name.partition('.dist-info/licenses/')[2] for name in names} == {
        '', 'LICENSE', 'NOTICE'}
