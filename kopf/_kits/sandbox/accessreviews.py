"""
Access reviews: queries of permissions and users. Clients create objects, which are never stored.
"""
import dataclasses
import datetime
from collections.abc import Callable, Mapping

from kopf._kits.sandbox import encoding, objects, wordings
from kopf._kits.sandbox.access import ISSUER, Access
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.requests import Request, Target, User
from kopf._kits.sandbox.statuses import Invalid, Obj

AUTHORIZATION = 'authorization.k8s.io'
AUTHENTICATION = 'authentication.k8s.io'
MIN_SECONDS = 600
DEFAULT_SECONDS = 3600
TOKEN_REQUEST = Kind(
    group=AUTHENTICATION, version='v1', plural='tokenrequests', kind='TokenRequest')


class Reviews:
    """Answers what is created of the kinds of reviews, and requests for tokens."""

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._cluster = cluster
        self._access = access
        self._answers: Mapping[Resource, Callable[[Request, Obj], Obj]] = {
            (AUTHORIZATION, 'selfsubjectaccessreviews'): self._allowed,
            (AUTHORIZATION, 'subjectaccessreviews'): self._allowed,
            (AUTHORIZATION, 'localsubjectaccessreviews'): self._allowed,
            (AUTHORIZATION, 'selfsubjectrulesreviews'): self._rules,
            (AUTHENTICATION, 'selfsubjectreviews'): self._self,
            (AUTHENTICATION, 'tokenreviews'): self._token,
        }

    def answer(self, request: Request) -> tuple[int, bytes] | None:
        """Answer the request; None if it is of no review."""
        if request.verb != 'create':
            return None
        if request.kind.plural == 'serviceaccounts' and request.subresource == 'token':
            return self._issue_token(request)
        if request.kind.resource not in self._answers:
            return None
        obj = objects.decode_object(request, self._cluster.kinds)
        status = self._answers[request.kind.resource](request, obj.get('spec') or {})
        obj['metadata'].setdefault('creationTimestamp', None)
        return 201, encoding.encode({
            'kind': request.kind.kind, 'apiVersion': request.kind.api_version, **obj,
            'status': status})

    def _allowed(self, request: Request, spec: Obj) -> Obj:
        user = request.user if request.kind.plural.startswith('self') else User(
            str(spec.get('user') or ''), tuple(spec.get('groups') or ()))
        asked = spec.get('resourceAttributes') or spec.get('nonResourceAttributes')
        if asked is None:
            raise Invalid.on(request.kind.group, request.kind.kind, '', [wordings.invalid(
                'spec.resourceAttributes', None,
                "exactly one of nonResourceAttributes or resourceAttributes must be specified")])
        names = ('verb', 'group', 'resource', 'subresource', 'namespace', 'name', 'path')
        target = Target(**{name: asked.get(name, '') for name in names})
        return {'allowed': self._access.allows(user, target)}

    def _rules(self, request: Request, spec: Obj) -> Obj:
        namespace = str(spec.get('namespace') or '')
        rules: list[Obj] = list(self._access.rules(request.user, namespace))
        if request.user.is_master:
            rules.append({'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*']})
            rules.append({'verbs': ['*'], 'nonResourceURLs': ['*']})
        return {
            'resourceRules': [rule for rule in rules if rule.get('resources')],
            'nonResourceRules': [rule for rule in rules if rule.get('nonResourceURLs')],
            'incomplete': False,
        }

    def _self(self, request: Request, spec: Obj) -> Obj:
        return {'userInfo': user_info(request.user)}

    def _token(self, request: Request, spec: Obj) -> Obj:
        user = self._access.of_token(str(spec.get('token') or ''))
        if user is None:
            return {'user': {}, 'error': 'invalid bearer token'}
        return {'authenticated': True, 'user': user_info(user),
                'audiences': spec.get('audiences') or [ISSUER]}

    def _issue_token(self, request: Request) -> tuple[int, bytes]:
        """A token for a service account (``TokenRequest``)."""
        entry = self._cluster.get(request.kind, (request.namespace, request.name))
        asked = objects.decode_object(
            dataclasses.replace(request, kind=TOKEN_REQUEST), self._cluster.kinds)
        spec: Obj = asked.get('spec') or {}
        seconds = spec.get('expirationSeconds')
        seconds = DEFAULT_SECONDS if seconds is None else seconds
        if seconds < MIN_SECONDS:
            raise Invalid.on(TOKEN_REQUEST.group, TOKEN_REQUEST.kind, '', [wordings.invalid(
                'spec.expirationSeconds', seconds,
                "may not specify a duration less than 10 minutes")])
        audiences = spec.get('audiences') or [ISSUER]
        token, expires = self._access.issue(
            request.namespace, request.name, entry.uid, seconds, audiences)
        time = datetime.datetime.fromtimestamp(expires, datetime.UTC)
        return 201, encoding.encode({
            'kind': TOKEN_REQUEST.kind, 'apiVersion': TOKEN_REQUEST.api_version,
            'metadata': {'name': request.name, 'namespace': request.namespace,
                         'creationTimestamp': self._cluster.now()},
            'spec': {'audiences': audiences, 'expirationSeconds': seconds,
                     'boundObjectRef': spec.get('boundObjectRef')},
            'status': {'token': token,
                       'expirationTimestamp': time.strftime('%Y-%m-%dT%H:%M:%SZ')},
        })


def user_info(user: User) -> Obj:
    info: Obj = {'username': user.name}
    if user.uid:
        info['uid'] = user.uid
    if user.groups:
        info['groups'] = list(user.groups)
    return info
