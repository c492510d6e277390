"""
The protocol of conversions: the requests of API servers, and the responses.
"""
import asyncio

import pytest

from kopf._core.engines.admission import conversions, questions


class Renaming:
    """Converts by nothing but the version; refuses what is bad."""
    group = 'example.com'

    def __init__(self, name='things.example.com'):
        self.name = name

    def convert(self, obj, version):
        if obj.get('spec') == 'bad':
            raise ValueError("it is bad")
        return {**obj, 'apiVersion': f'{self.group}/{version}'}


def make(*objs, desired='example.com/v2', **request):
    return {'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'ConversionReview', 'request': {
        'uid': 'u', 'desiredAPIVersion': desired, 'objects': list(objs), **request}}


def make_object(name='a', version='v1', **fields):
    return {'apiVersion': f'example.com/{version}', 'metadata': {'name': name}, **fields}


def convert(review, *converters, path=''):
    return asyncio.run(conversions.convert(review, converters or [Renaming()], path=path))


@pytest.mark.parametrize('path', ['', None, 'convert', 'convert/things.example.com'])
def test_the_order_the_number_and_the_uid_stay(path):
    objs = [make_object('a'), make_object('b', 'v2'), make_object('c')]
    answer = convert(make(*objs), path=path)
    assert answer == {
        'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'ConversionReview', 'response': {
            'uid': 'u', 'result': {'status': 'Success'},
            'convertedObjects': [make_object(name, 'v2') for name in 'abc']}}


def test_one_failure_fails_all_and_names_the_object():
    answer = convert(make(make_object('a'), make_object('b', spec='bad')))
    assert answer['response']['convertedObjects'] == []
    assert answer['response']['result'] == {
        'status': 'Failure',
        'message': "things.example.com 'b' cannot be converted from example.com/v1 to "
                   "example.com/v2: it is bad"}


async def test_many_objects_do_not_block_the_event_loop():
    seen, review = [], make(*map(make_object, 'abc'))
    task = asyncio.create_task(conversions.convert(review, [Renaming()], path=''))
    while not task.done():
        seen.append(None)
        await asyncio.sleep(0)
    assert len(seen) > 3


def test_no_objects_are_converted_to_none():
    assert convert(make())['response']['convertedObjects'] == []


def test_the_path_says_which_of_several_definitions_it_is():
    both = [Renaming(), Renaming('others.example.com')]
    assert convert(make(make_object()), *both, path='convert/others.example.com')
    with pytest.raises(questions.UnknownResourceError):
        convert(make(make_object()), *both)


@pytest.mark.parametrize(('desired', 'path'), [
    ('other.com/v2', ''), ('v2', ''), ('example.com/v2', 'convert/x.example.com'),
    ('example.com/v2', 'validate')])
def test_other_definitions_are_not_known(desired, path):
    with pytest.raises(questions.UnknownResourceError):
        convert(make(make_object(), desired=desired), path=path)


@pytest.mark.parametrize('review', [
    {}, {'request': {}}, {**make(), 'apiVersion': 'apiextensions.k8s.io/v1beta1'},
    make(uid=1), make(objects=None), make(objects=['text']), make(desired=None),
    {**make(), 'request': []}])
def test_improper_reviews_are_refused(review):
    with pytest.raises(questions.MalformedRequestError):
        convert(review)
