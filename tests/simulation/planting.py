"""
Planting of faults: a function of the framework is replaced by itself with a change in its text.
"""
import contextlib
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    where: str
    """The module below ``kopf`` and the function: ``_core.path.inboxes:Inbox.offer``."""
    old: str
    """The part of the function's text to replace; it occurs there exactly once."""
    new: str
    breaks: str
    """The guarantee that it breaks, in the words of the documentation."""
    is_stale: bool = False
    """Whether only older states after restarts show it."""
    is_paused: bool = False
    """Whether only pauses show it."""
    is_sharded: bool = False
    """Whether only replicas show it that share the objects."""

    def get_options(self) -> tuple[str, ...]:
        """The options of the plans in which it can be found."""
        return tuple(name for name in ('is_stale', 'is_paused', 'is_sharded')
                     if getattr(self, name))


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """
    Plant the fault for the block.

    :raises ValueError: if the function does not contain the text any more.
    """
    module_name, _, path = fault.where.partition(':')
    module = importlib.import_module(f'kopf.{module_name}')
    *parents, name = path.split('.')
    owner: Any = module
    for parent in parents:
        owner = getattr(owner, parent)
    known = inspect.getattr_static(owner, name)
    setattr(owner, name, _change(fault, module, owner, known))
    try:
        yield
    finally:
        setattr(owner, name, known)


def _change(fault: Fault, module: Any, owner: Any, known: Any) -> Any:
    fn = known.fget if isinstance(known, property) else known
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(fn)))
    if source.count(fault.old) != 1:
        raise ValueError(
            f"The fault {fault.name!r} cannot be planted: {fault.where} has {fault.old!r} "
            f"{source.count(fault.old)} times. Adapt it to the changed function.")
    text = textwrap.indent(source.replace(fault.old, fault.new), '    ')
    text = f"def make(__class__):\n{text}\n    return {fn.__name__}"  # for super()
    namespace: dict[str, Any] = {}
    exec(compile(text, f'<{fault.name}>', 'exec', flags=0, dont_inherit=True),
         module.__dict__, namespace)
    return namespace['make'](owner)
