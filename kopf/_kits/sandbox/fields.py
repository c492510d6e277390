"""
Fields that objects can be selected by (``?fieldSelector=``), kind by kind.
"""
from kopf._kits.sandbox.kinds import Kind, get_traits
from kopf._kits.sandbox.selecting import FieldSelector, field_value, parse_fields
from kopf._kits.sandbox.statuses import BadRequest, Obj
from kopf._kits.sandbox.storage import Entry

_COMMON = ('metadata.name', 'metadata.namespace')
_ELSEWHERE = {
    ('events', 'source'): 'source.component',
    ('jobs', 'status.successful'): 'status.succeeded',
    ('namespaces', 'name'): 'metadata.name',
}
_ZEROS = {'status.replicas': '0', 'status.successful': '0', 'spec.unschedulable': 'false',
          'spec.hostNetwork': 'false'}


def parse_for(kind: Kind, text: str) -> FieldSelector:
    """A selector by the fields that this kind has. Raises `BadRequest` for others."""
    own = get_traits(kind.resource).get('selectable', ())
    known = {*_COMMON, *own, *(path.lstrip('.') for path in kind.selectable)}
    selector = parse_fields(text)
    for field, _, _ in selector:
        if field in known:
            continue
        if not own and not kind.custom:
            raise BadRequest(f'"{field}" is not a known field selector: '
                             'only "metadata.name", "metadata.namespace"')
        is_told = kind.plural in ('namespaces', 'secrets', 'nodes', 'jobs', 'events')
        raise BadRequest(
            f'field label "{field}" not supported for {kind.kind}' if is_told and own else
            f"field label not supported: {field}")
    return selector


def matches(selector: FieldSelector, kind: Kind, entry: Entry) -> bool:
    """Whether the object is selected; it is decoded only where more than its name is asked."""
    obj: Obj | None = None

    def value_of(field: str) -> str:
        nonlocal obj
        if field == 'metadata.name':
            return entry.key[1]
        if field == 'metadata.namespace':
            return entry.key[0]
        if obj is None:
            obj = entry.decode()
        return field_value(obj, _ELSEWHERE.get((kind.plural, field), field)) \
            or _ZEROS.get(field, '')

    return all((value_of(field) == value) is wanted for field, value, wanted in selector)
