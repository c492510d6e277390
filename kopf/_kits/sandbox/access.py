"""
Who asks, and what they may do: tokens, client certificates, roles and their bindings.
"""
import base64
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.requests import ANONYMOUS, Target, User
from kopf._kits.sandbox.selecting import labels_of
from kopf._kits.sandbox.statuses import APIError, Forbidden, Obj, Unauthorized

RBAC = 'rbac.authorization.k8s.io'
ROLES: Resource = (RBAC, 'roles')
CLUSTER_ROLES: Resource = (RBAC, 'clusterroles')
ROLE_BINDINGS: Resource = (RBAC, 'rolebindings')
CLUSTER_ROLE_BINDINGS: Resource = (RBAC, 'clusterrolebindings')
SERVICE_ACCOUNTS: Resource = ('', 'serviceaccounts')
ISSUER = 'https://kubernetes.default.svc'

STORED = (ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)
"""What the rights of users follow from."""

PLAIN = User('plain', ('nobodies', 'system:authenticated'), 'plain')
#: The user of plain HTTP: clients send no credentials there, so it may do everything.
UNSECURED = User('system:unsecured', ('system:masters', 'system:authenticated'))


class Access:
    """Authenticates requests, and authorizes what is targeted by the roles that are stored."""

    def __init__(self, cluster: Cluster, *, tls: bool) -> None:
        self._cluster = cluster
        self._tls = tls
        self._key = secrets.token_bytes(32)
        self.tokens: dict[str, User] = {}
        self.listeners: dict[str, Callable[[Target, bool], None]] = {}
        """Who is told of the requests of a user, and of whether they are allowed."""

    def add_token(self, user: User) -> str:
        """Make a new token for the user, which is valid as long as the sandbox runs."""
        token = secrets.token_urlsafe(24)
        self.tokens[token] = user
        return token

    def authenticate(self, http: web.BaseRequest) -> User:
        """Find the user of a request. Raise `Unauthorized` if the credentials are wrong."""
        user = self._authenticate(http)
        asked = http.headers.get('Impersonate-User')
        if not asked:
            return user
        self._check_impersonation(user, asked)
        groups = tuple(http.headers.getall('Impersonate-Group', ()))
        if asked.startswith('system:serviceaccount:') and not groups:
            groups = _account_groups(asked.split(':')[2])
        return User(asked, (*groups, 'system:authenticated'))

    def _authenticate(self, http: web.BaseRequest) -> User:
        scheme, _, token = http.headers.get('Authorization', '').partition(' ')
        if scheme.lower() == 'bearer':
            user = self.of_token(token.strip())
            if user is None:
                raise Unauthorized
            return user
        if not self._tls:
            return UNSECURED
        ssl_object: ssl.SSLObject | None = \
            http.transport.get_extra_info('ssl_object') if http.transport else None
        certificate = ssl_object.getpeercert() if ssl_object is not None else None
        return _certified(certificate) if certificate else ANONYMOUS

    def _check_impersonation(self, user: User, asked: str) -> None:
        target = Target(verb='impersonate', resource='users', name=asked)
        if asked.startswith('system:serviceaccount:') and asked.count(':') == 3:
            _, _, namespace, name = asked.split(':')
            target = Target(verb='impersonate', resource='serviceaccounts',
                              namespace=namespace, name=name)
        self.authorize(user, target)

    def of_token(self, token: str) -> User | None:
        """Find the user of the token; None if the token is unknown or not valid any more."""
        for known, user in self.tokens.items():
            if secrets.compare_digest(known.encode(), token.encode()):
                return user
        return self._of_account(token)

    # Tokens of service accounts.

    def issue(self, namespace: str, name: str, uid: str, seconds: int,
              audiences: list[str]) -> tuple[str, float]:
        """A signed token of a service account, and when it expires."""
        now = self._cluster.clock().timestamp()
        claims = {
            'aud': audiences, 'exp': int(now + seconds), 'iat': int(now), 'nbf': int(now),
            'iss': ISSUER, 'jti': self._cluster.new_uid(),
            'kubernetes.io': {'namespace': namespace,
                              'serviceaccount': {'name': name, 'uid': uid}},
            'sub': f'system:serviceaccount:{namespace}:{name}',
        }
        head = _b64(encoding.encode({'alg': 'HS256', 'kid': 'sandbox'}))
        body = f'{head}.{_b64(encoding.encode(claims))}'
        return f'{body}.{self._sign(body)}', now + seconds

    def _of_account(self, token: str) -> User | None:
        body, _, signature = token.rpartition('.')
        if not body or not hmac.compare_digest(
                self._sign(body).encode(), signature.encode('utf-8', 'replace')):
            return None
        payload = body.partition('.')[2]
        claims = json.loads(base64.urlsafe_b64decode(payload + '=' * (-len(payload) % 4)))
        account = claims['kubernetes.io']['serviceaccount']
        namespace = claims['kubernetes.io']['namespace']
        entry = self._cluster.store.get(SERVICE_ACCOUNTS, (namespace, account['name']))
        if claims['exp'] < self._cluster.clock().timestamp() \
                or entry is None or entry.uid != account['uid']:
            return None
        return User(claims['sub'], (*_account_groups(namespace), 'system:authenticated'), entry.uid)

    def _sign(self, text: str) -> str:
        return _b64(hmac.digest(self._key, text.encode('utf-8', 'replace'), hashlib.sha256))

    # Rights.

    def authorize(self, user: User, target: Target) -> None:
        """Raises `Forbidden` where no role allows it."""
        is_allowed = self.allows(user, target)
        if user.name in self.listeners:
            self.listeners[user.name](target, is_allowed)
        if not is_allowed:
            raise _refusal(user, target)

    def allows(self, user: User, target: Target) -> bool:
        return user.is_master or any(
            _permits(rule, target) for rule in self.rules(user, target.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Obj]:
        """All rules of roles that are bound to the user, cluster-wide and in the namespace."""
        store = self._cluster.store
        places = [(CLUSTER_ROLE_BINDINGS, ''), (ROLE_BINDINGS, namespace)]
        for resource, where in places if namespace else places[:1]:
            for entry in store.select(resource, where):
                binding = entry.decode()
                if any(_is_subject(user, subject, where) for subject in
                       binding.get('subjects') or ()):
                    yield from self._rules_of(binding.get('roleRef') or {}, where)

    def _rules_of(self, ref: Mapping[str, Any], namespace: str) -> Iterable[Obj]:
        is_local = ref.get('kind') == 'Role'
        key = (namespace if is_local else '', ref.get('name', ''))
        entry = self._cluster.store.get(ROLES if is_local else CLUSTER_ROLES, key)
        if entry is None:
            return []
        role = entry.decode()
        rules = list(role.get('rules') or ())
        selectors = [labels_of(selector) for selector in
                     (role.get('aggregationRule') or {}).get('clusterRoleSelectors') or ()]
        if selectors:
            for other in self._cluster.store.select(CLUSTER_ROLES):
                if other.key != key and any(s.matches(other.labels) for s in selectors):
                    rules.extend(other.decode().get('rules') or ())
        return rules


def _refusal(user: User, target: Target) -> APIError:
    if target.path:
        return Forbidden(
            f'forbidden: User "{user.name}" cannot {target.verb} path "{target.path}"', details={})
    where = f'in the namespace "{target.namespace}"' if target.namespace else 'at the cluster scope'
    return Forbidden.to(
        f'User "{user.name}" cannot {target.verb} resource "{target.resources[0]}" '
        f'in API group "{target.group}" {where}',
        group=target.group, plural=target.resource, name=target.name)


def _certified(certificate: Mapping[str, Any]) -> User:
    """The user of a client certificate: its common name, in the groups of its organizations."""
    pairs = [pair for part in certificate.get('subject', ()) for pair in part]
    name = dict(reversed(pairs)).get('commonName')  # the first one
    if not name:
        raise Unauthorized
    groups = [value for key, value in pairs if key == 'organizationName']
    return User(name, (*groups, 'system:authenticated'))


def _account_groups(namespace: str) -> tuple[str, ...]:
    return 'system:serviceaccounts', f'system:serviceaccounts:{namespace}'


def _is_subject(user: User, subject: Mapping[str, Any], namespace: str) -> bool:
    name = subject.get('name')
    match subject.get('kind'):
        case 'User':
            return name in (user.name, '*')
        case 'Group':
            return name in user.groups
        case 'ServiceAccount':
            where = subject.get('namespace') or namespace
            return user.name == f'system:serviceaccount:{where}:{name}'
    return False


def _permits(rule: Mapping[str, Any], target: Target) -> bool:
    def covers(key: str, *values: str) -> bool:
        return not {'*', *values}.isdisjoint(rule.get(key) or ())

    if not covers('verbs', target.verb):
        return False
    if target.path:
        return any(
            target.path == path or (path.endswith('*') and target.path.startswith(path[:-1]))
            for path in rule.get('nonResourceURLs') or ())
    anywhere = f'*/{target.subresource}' if target.subresource else '*'
    names = rule.get('resourceNames') or ()
    return (covers('apiGroups', target.group) and covers('resources', target.resources[0], anywhere)
            and (not names or target.name in names))


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip('=')

