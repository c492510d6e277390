"""What a user would do in the demo: make an object, change it, delete it, and look what happens."""
import asyncio
import os
import pathlib
import sys

import yaml

from kopf import testing

HERE = pathlib.Path(__file__).parents[1]
OBJ = HERE / 'examples' / 'obj.yaml'


def say(text: str) -> None:
    start, end = ('\033[1m', '\033[0m') if sys.stdout.isatty() else ('', '')
    print(f"\n{start}# {text}{end}", flush=True)


async def main(kubeconfig: pathlib.Path, operator: int) -> None:
    while not os.path.exists(kubeconfig):  # noqa: ASYNC240
        os.kill(operator, 0)  # is it still there?
        await asyncio.sleep(0.05)
    async with testing.open_api(str(kubeconfig)) as api:
        say("kubectl create -f examples/obj.yaml")
        [obj] = await api.client.load(OBJ)
        obj = await api.client.wait(obj, None, is_handled)
        await asyncio.sleep(0.3)
        say("kubectl patch kopfexample kopf-example-1 --type merge "
            "-p '{\"spec\": {\"field\": \"other\"}}'")
        await api.client.patch(obj, {'spec': {'field': 'other'}})
        obj = await api.client.wait(
            obj, None, lambda obj: '"other"' in obj['metadata']['annotations'][LAST_HANDLED])
        await asyncio.sleep(0.3)
        say("kubectl get kopfexample kopf-example-1 --output yaml")
        print(yaml.safe_dump({**obj, 'metadata': {
            key: val for key, val in obj['metadata'].items() if key not in HIDDEN}}), end='')
        say("kubectl delete kopfexample kopf-example-1")
        await api.client.delete(obj)
        await api.client.wait_gone(obj)
        await asyncio.sleep(0.3)


HIDDEN = {'annotations', 'managedFields'}  # what only Kopf and the API server read
LAST_HANDLED = 'kopf.zalando.org/last-handled-configuration'


def is_handled(obj: dict) -> bool:
    return LAST_HANDLED in obj['metadata']['annotations']


asyncio.run(main(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
