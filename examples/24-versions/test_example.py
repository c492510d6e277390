import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
OLD = 'archives.v1alpha1.example.com'
NEW = 'archives.v1.example.com'


@pytest.fixture()
def operator(kopf_operator):
    operator = kopf_operator(HERE / 'example.py')
    assert operator.wait_log("Reconfiguring the conversion of archives.example.com.")
    return operator


def test_handlers_see_the_new_version_whatever_users_write(kopf_client, operator):
    kopf_client.create(OLD, 'hello', spec={'sizeGb': 5, 'owner': 'ann'})
    assert operator.wait_log("hello has 5G for ann.")
    kopf_client.patch(OLD, 'hello', {'spec': {'sizeGb': 7}})
    assert operator.wait_log("Resized from 5G to 7G.")
    assert kopf_client.get(NEW, 'hello')['spec'] == {'size': '7G', 'owners': ['ann']}


def test_an_edit_in_the_old_version_changes_nothing_else(kopf_client, operator):
    kopf_client.create(NEW, 'hello', spec={'size': '1500M', 'owners': ['ann', 'bob']})
    assert kopf_client.get(OLD, 'hello')['spec'] == {'sizeGb': 1, 'owner': 'ann'}
    kopf_client.patch(OLD, 'hello', {'metadata': {'labels': {'edited': 'yes'}}})
    assert kopf_client.get(NEW, 'hello')['spec'] == {'size': '1500M', 'owners': ['ann', 'bob']}
    kopf_client.patch(OLD, 'hello', {'spec': {'sizeGb': 3}})
    assert kopf_client.get(NEW, 'hello')['spec'] == {'size': '3G', 'owners': ['ann', 'bob']}


def test_the_definition_is_up_to_date():
    subprocess.run([sys.executable, '-m', 'kopf', 'crd', HERE / 'example.py',
                    '--drift', HERE / 'crd.yaml'], check=True)
