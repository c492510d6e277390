import pathlib

from kopf import testing

import example

HERE = pathlib.Path(__file__).parent


def test_it_is_tried_every_hour_and_reminded_of_every_ten_minutes(kopf_client, kopf_operator):
    kopf_client.load(HERE.parent / 'crd.yaml')
    kopf_operator(HERE / 'example.py')
    kopf_client.create('kopfexamples', 'example', spec={'field': 'value'})
    obj = kopf_client.wait(
        'kopfexamples', 'example', lambda obj: obj['status']['greet'], timeout=4 * 3600)
    assert obj['status']['greet'] == {'field': 'value', 'tries': 4}
    assert obj['status']['remind'] >= 18


def test_it_asks_for_another_try_in_an_hour():
    done = testing.invoke_sync(example.greet, {'spec': {'field': 'value'}}, retry=0)
    assert not done.succeeded and done.delay == 3600
