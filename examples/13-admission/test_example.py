import pathlib

import pytest
from kopf import testing

import example

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize('field, allowed', [('text', True), (123, False)])
def test_the_field_has_to_be_a_text(field, allowed):
    done = testing.invoke_sync(example.check, {'spec': {'field': field}}, reason='validate')
    assert done.allowed == allowed


def test_the_absence_of_the_field_is_warned_of():
    done = testing.invoke_sync(example.check, {'spec': {}}, reason='validate')
    assert done.allowed and done.warnings == ["spec.field is not there."]


def test_the_api_refuses_and_completes_what_comes(kopf_client, kopf_operator):
    kopf_client.load(HERE.parent / 'crd.yaml')
    kopf_operator(HERE / 'example.py')
    kopf_client.wait('validatingwebhookconfigurations', 'examples.kopf.dev')
    kopf_client.wait('mutatingwebhookconfigurations', 'examples.kopf.dev')
    obj = kopf_client.create('kopfexamples', 'good', spec={'field': 'text'})
    assert obj['spec'] == {'field': 'text', 'duration': '1m'}
    with pytest.raises(testing.APIError, match="must be a text"):
        kopf_client.create('kopfexamples', 'bad', spec={'field': 123})
