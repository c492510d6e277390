"""
Planning: runs the operator, and makes the plan.
"""
import datetime
from typing import Any

from kopf._kits.planning import dryruns, plans
from kopf._kits.sandbox.cluster import stored_resource
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import runs

REST = 150.0
REAL_LIMIT = 600.0


def plan(
        *sources: runs.Source,
        upstream: Upstream,
        horizon: float = 3600.0,
        **options: Any,
) -> plans.Plan:
    runs.check_sync('plan')
    setup = runs.Setup(
        sources, options, load=(), ignore=(), rest=REST, limit=horizon, real_limit=REAL_LIMIT,
        origin=datetime.datetime.now(datetime.UTC))
    run = dryruns.DryRun(setup, upstream, horizon=horizon)
    run.rehearse()
    items = []
    for difference in run.differences:
        handlers = run.handlers.get((stored_resource(difference.kind), difference.key), {})
        item = plans.make_item(difference, handlers, staged=False)
        items.append(item)
    return plans.Plan(items, run.problems, list(run.attribution.failures.values()))
