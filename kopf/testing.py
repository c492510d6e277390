"""
Tools for tests of operators, to be imported explicitly. See "Test operators" in the documentation.
"""
from kopf._cogs.clients.errors import APIError
from kopf._kits.explanations import Explanation
from kopf._kits.planning.attribution import Failure
from kopf._kits.planning.planning import PlanError, plan
from kopf._kits.planning.plans import ExternalCall, Field, Item, Place, Plan, Refused
from kopf._kits.runner import KopfRunner
from kopf._kits.sandbox.faults import Fault
from kopf._kits.sandbox.overlays import Difference
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing.apis import API, open_api
from kopf._kits.testing.clients import Client, SyncClient
from kopf._kits.testing.clouds import FakeCloud
from kopf._kits.testing.exploring import Exploration, ExplorationError, Finding, Strike, explore
from kopf._kits.testing.externals import Call
from kopf._kits.testing.intercepting import Interception, intercept
from kopf._kits.testing.invoking import Invocation, invoke, invoke_sync
from kopf._kits.testing.operators import Operator
from kopf._kits.testing.sandboxthreads import SandboxThread, run_sandbox
from kopf._kits.testing.sessions import OperatorStarter, Session, SyncOperator, Time
from kopf._kits.testing.verdicts import explain
from kopf._kits.testing.virtual import virtual_time
from kopf._kits.testing.waiting import wait_for, wait_for_sync
from kopf._kits.testing.walking import WalkError, walk

__all__ = [
    'API',
    'APIError',
    'Call',
    'Client',
    'Difference',
    'Explanation',
    'Exploration',
    'ExplorationError',
    'ExternalCall',
    'Failure',
    'FakeCloud',
    'Fault',
    'Field',
    'Finding',
    'Interception',
    'Invocation',
    'Item',
    'KopfRunner',
    'Operator',
    'OperatorStarter',
    'Place',
    'Plan',
    'PlanError',
    'Refused',
    'Sandbox',
    'SandboxThread',
    'Session',
    'Strike',
    'SyncClient',
    'SyncOperator',
    'Time',
    'Upstream',
    'WalkError',
    'explain',
    'explore',
    'intercept',
    'invoke',
    'invoke_sync',
    'open_api',
    'plan',
    'run_sandbox',
    'virtual_time',
    'wait_for',
    'wait_for_sync',
    'walk',
]
