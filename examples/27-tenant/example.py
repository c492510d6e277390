"""
Tenants of a cluster: each team has namespaces with quotas, roles, and network policies, and an
account in a billing service. The account is in another system, so that it is an external; all the
rest follows from the team, so that it is reconciled. If the billing service suspends the account,
the team can start no more pods. ``docs/example-tenant.md`` says why it is built so. This example
needs ``pip install annotated-types``, and its tests need ``kopf[sandbox]``. Type ``pytest
examples/27-tenant``: the tests use a fake billing service. If you have such a service, type
``BILLING_URL=http://localhost:8080 kopf run --sandbox -A examples/27-tenant/example.py``, apply
``obj.yaml``, and see the namespaces in ``kubectl get namespaces -l example.com/team=shop``.
"""
import dataclasses
import enum
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import aiohttp
import kopf
from annotated_types import Len

TEAM = 'example.com/team'


# The kind.

class Plan(enum.StrEnum):
    STARTER = 'Starter'
    STANDARD = 'Standard'


QUOTAS: Mapping[Plan, Mapping[str, str]] = {
    Plan.STARTER: {'requests.cpu': '2', 'requests.memory': '4Gi', 'pods': '20'},
    Plan.STANDARD: {'requests.cpu': '16', 'requests.memory': '64Gi', 'pods': '200'},
}
"""What each namespace of a team can use."""


class Role(enum.StrEnum):
    """The roles of Kubernetes for people: its own ``view``, ``edit``, and ``admin``."""
    VIEW = 'view'
    EDIT = 'edit'
    ADMIN = 'admin'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    name: Annotated[str, Len(1, 253), kopf.CEL(
        "!self.startsWith('system:')", "This is nobody's name")]  # By which the user logs in.
    role: Role = Role.EDIT


Environment = Annotated[str, Len(1, 20), kopf.Pattern('^[a-z0-9]+$')]  # Without any hyphen.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamSpec:
    contact: Annotated[str, kopf.Pattern('^[^@]+@[^@]+$')]  # Who gets the invoices.
    plan: Plan = Plan.STARTER
    members: Annotated[list[Member], kopf.ListMap('name'), Len(0, 100)] = dataclasses.field(
        default_factory=list)
    environments: Annotated[list[Environment], kopf.ListSet, Len(1, 5), kopf.CEL(
        'oldSelf.all(one, one in self)',
        "Environments are deleted with their team only")] = dataclasses.field(
        default_factory=lambda: ['dev'])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeamStatus:
    billing: dict[str, Any] = dataclasses.field(default_factory=dict)
    namespaces: list[str] = dataclasses.field(default_factory=list)
    conditions: kopf.Conditions = dataclasses.field(default_factory=list)


@kopf.crd('example.com', 'v1', plural='teams', scope='Cluster',
          columns=[kopf.Column('Plan', '.spec.plan'),
                   kopf.Column('Account', '.status.billing.key'),
                   kopf.Column('Billing', '.status.billing.state'),
                   kopf.Column('Ready', '.status.conditions[?(@.type=="Ready")].status')],
          rules=[kopf.CEL("self.metadata.name.matches('^[a-z0-9-]{1,30}$')",
                          "The name is too long, or has dots")])
class Team:
    spec: TeamSpec
    status: TeamStatus = TeamStatus()


# The client of the billing service: one session for the operator.

@kopf.on.startup()
async def connect(memo: kopf.Memo, **_):
    memo.session = aiohttp.ClientSession(
        os.environ.get('BILLING_URL', 'http://127.0.0.1:8080'),
        headers={'Authorization': f"Bearer {os.environ.get('BILLING_TOKEN', '')}"},
        timeout=aiohttp.ClientTimeout(total=20), raise_for_status=True)


@kopf.on.cleanup()
async def disconnect(memo: kopf.Memo, **_):
    await memo.session.close()


async def call(memo: kopf.Memo, method: str, path: str, **options: Any) -> Any:
    async with memo.session.request(method, path, **options) as response:
        return None if response.status == 204 else await response.json()


# In the billing service: one account for each team.

billing = kopf.external(
    Team, id='billing', interval=300, limit=kopf.Rate(10, per=1.0), shown=['state'],
    on_drift='report', conditions=True)


@billing.desired
def desired(spec: TeamSpec, **_):
    return {'plan': spec.plan, 'seats': len(spec.members), 'contact': spec.contact}


@billing.observe
async def observe(key, memo: kopf.Memo, **_):
    try:
        return await call(memo, 'GET', f'/accounts/{key}')
    except aiohttp.ClientResponseError as e:
        if e.status == 404:
            return None
        raise


@billing.find
async def find(token, memo: kopf.Memo, **_):
    found = await call(memo, 'GET', '/accounts', params={'reference': token})
    return found['items'][0]['id'] if found['items'] else None


@billing.create
async def create(name, token, desired, memo: kopf.Memo, **_):
    account = {**desired, 'reference': token, 'team': name, 'state': 'active'}
    return (await call(memo, 'POST', '/accounts', json=account))['id']


@billing.update
async def update(key, desired, memo: kopf.Memo, **_):
    await call(memo, 'PATCH', f'/accounts/{key}', json=desired)


@billing.delete
async def delete(key, memo: kopf.Memo, **_):
    await call(memo, 'DELETE', f'/accounts/{key}')


# In the cluster: all that follows from the team and from the state of its account.

@kopf.reconcile(
    Team, after=[billing], conditions=True,
    owns=['namespaces', 'resourcequotas', 'limitranges', 'rolebindings.rbac.authorization.k8s.io',
          'networkpolicies.networking.k8s.io'])
@kopf.needs('clusterroles.rbac.authorization.k8s.io', verbs=['bind'], names=[*Role])
def provision(name, spec: TeamSpec, status: TeamStatus, patch, **_):
    is_suspended = status.billing.get('state') == 'suspended'
    namespaces = [f'team-{name}-{environment}' for environment in spec.environments]
    for namespace in namespaces:
        yield {
            'apiVersion': 'v1',
            'kind': 'Namespace',
            'metadata': {'name': namespace, 'labels': {
                TEAM: name, 'pod-security.kubernetes.io/enforce': 'baseline'}},
        }
        for manifest in describe_namespace(name, spec, is_suspended=is_suspended):
            manifest['metadata']['namespace'] = namespace
            yield manifest
    patch.status['namespaces'] = namespaces


def describe_namespace(
        team: str, spec: TeamSpec, *, is_suspended: bool) -> Iterator[dict[str, Any]]:
    yield {
        'apiVersion': 'v1',
        'kind': 'ResourceQuota',
        'metadata': {'name': 'plan'},
        'spec': {'hard': {**QUOTAS[spec.plan], **({'pods': '0'} if is_suspended else {})}},
    }
    yield {  # the quota refuses pods without requests
        'apiVersion': 'v1',
        'kind': 'LimitRange',
        'metadata': {'name': 'defaults'},
        'spec': {'limits': [{
            'type': 'Container', 'defaultRequest': {'cpu': '100m', 'memory': '128Mi'}}]},
    }
    yield {
        'apiVersion': 'networking.k8s.io/v1',
        'kind': 'NetworkPolicy',
        'metadata': {'name': 'from-same-team'},
        'spec': {
            'podSelector': {},
            'policyTypes': ['Ingress'],
            'ingress': [{'from': [{'namespaceSelector': {'matchLabels': {TEAM: team}}}]}],
        },
    }
    for role in Role:
        members = [member.name for member in spec.members if member.role == role]
        if members:
            yield {
                'apiVersion': 'rbac.authorization.k8s.io/v1',
                'kind': 'RoleBinding',
                'metadata': {'name': f'members-{role}'},
                'roleRef': {
                    'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'ClusterRole', 'name': role},
                'subjects': [{
                    'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'User', 'name': member,
                } for member in members],
            }
