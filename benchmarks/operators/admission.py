"""One mutating and one validating webhook, with the same given certificate for all versions."""

import os
import pathlib
from typing import Any

import common
import kopf


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.loggers = False
    settings.admission.managed = f'auto.{common.GROUP}'
    settings.admission.server = kopf.WebhookServer(
        addr='127.0.0.1', port=int(os.environ['BENCH_PORT']),
        cadata=pathlib.Path(os.environ['BENCH_CERT']).read_bytes(),
        certfile=os.environ['BENCH_CERT'], pkeyfile=os.environ['BENCH_KEY'])


@kopf.on.mutate(*common.KIND, operations=['CREATE'])
async def mutate(patch: kopf.Patch, **_: Any) -> None:
    patch.spec['mutated'] = True


@kopf.on.validate(*common.KIND, operations=['CREATE'])
async def validate(name: str, spec: kopf.Spec, **_: Any) -> None:
    common.record(name)
    if 'mutated' not in spec:
        raise kopf.AdmissionError("It is not mutated.")
