"""
What the operator's author has declared, and what it matches: handlers, registries, filters, causes,
and the errors that handlers can raise.

The package may import only the cogs. The package guarantees that nothing here does any I/O, and
that matching a handler has no side effects except for those of the author's callbacks.
"""
