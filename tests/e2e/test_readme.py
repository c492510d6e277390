import pathlib
import re

import yaml

from tests.e2e.kubes import CRDS, Kind

README = (pathlib.Path(__file__).parents[2] / 'README.md').read_text()
GREETINGS = Kind('example.com', 'v1', 'greetings', 'Greeting')


def get_block(language):
    block, = re.findall(rf'^```{language}\n(.*?)^```$', README, re.MULTILINE | re.DOTALL)
    return block


async def test_the_first_operator_does_what_is_told(kube, operator):
    await kube.request('POST', CRDS, body=yaml.safe_load(get_block('yaml')))
    try:
        op = operator(get_block('python'))
        await kube.wait_served(GREETINGS)
        await kube.create(GREETINGS, 'hello', spec={'whom': 'everybody'})
        await op.wait_for("Somebody greets everybody.")
        obj = await kube.wait_for(GREETINGS, 'hello', lambda obj: obj['status']['greet'])
        assert obj['status']['greet'] == {'greeted-by': 'hello'}
        await kube.patch(GREETINGS, 'hello', {'spec': {'whom': 'nobody'}})
        await op.wait_for("everybody is not greeted anymore, nobody is.")
    finally:
        await kube.delete_kind(GREETINGS)
