"""
Protection of objects from their deletion, as long as one of their own fields says so.
"""
import json
from typing import Any

from kopf._cogs.structs import dicts, ids, patches, references
from kopf._core.intents import causes, handlererrors, handlers, registries


def protected(
        *arguments: Any,
        field: str = 'spec.protected',
        registry: registries.OperatorRegistry | None = None,
) -> None:
    """
    Protect objects from their deletion as long as a field of them is true.

    An admission webhook refuses the deletion, with a message that says what to do. If the webhook
    could not refuse it, e.g. because the operator was down, the object has a finalizer: until the
    field is false, the deletion waits, the object has the condition ``Protected``, and Kopf calls
    no handlers for it.

    ::

        kopf.protected('websites', field='spec.protected')

    See "Protect objects from deletion" in the documentation.

    :param arguments: the resource, as in decorators: a name, a group and a name, a class of
        `kopf.crd`, etc.
    :param field: the field, as a path with dots.
    :param registry: the `kopf.OperatorRegistry` for the protection. Default: the default registry.
    :raises TypeError: if the resource is not specified as in decorators, or if its class has no
        such field.
    :raises ValueError: if the field is one of the metadata: labels and annotations are strings.
    """
    path, selector = dicts.parse_field(field), references.Selector(*arguments)
    if path[0] == 'metadata':
        raise ValueError(f"field= must be a field that can be true, such as spec.protected: not "
                         f"{field!r}.")
    patch = patches.Patch()
    dicts.ensure(patch, path, False)
    todo = f"--type=merge -p '{json.dumps(patch, separators=(',', ':'))}'"

    def is_protected(body: Any, **_: Any) -> bool:
        return dicts.resolve(body, path, None) is True

    async def refuse(name: str, namespace: str | None, resource: Any, **_: Any) -> None:
        who = f"{resource.plural}.{resource.group}".rstrip('.') + f" {name}"
        who += f" -n {namespace}" if namespace else ""
        raise handlererrors.AdmissionError(
            f"it is protected from deletion, as its {field} is true. To delete it, type first: "
            f"kubectl patch {who} {todo}", code=403)

    declared = references.get_declaration(arguments[0])
    if declared is not None:
        declared.bind(refuse, path, is_lasting=False)  # to notice a field that the class lacks
    target = registries.get_default_registry() if registry is None else registry
    options: Any = {
        'id': ids.HandlerId(f'protected/{field}'), 'fn': refuse, 'selector': selector,
        'when': is_protected, 'declared': declared}
    target.append(handlers.WebhookHandler(
        **options, reason='validating', operations=frozenset({'DELETE'})))
    target.append(handlers.ChangingHandler(
        **options, reason=causes.Reason.DELETE, requires_finalizer=True, protects=(
            f"The deletion waits, as {field} is true. To go on: kubectl patch … {todo}")))
