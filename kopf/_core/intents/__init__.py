"""
What the author declared, and what it matches: handlers, registries, filters, causes, and the errors
that handlers may raise.

It may import the cogs only. It guarantees that nothing here does any I/O, and that matching a
handler has no effects but those of the author's own callbacks.
"""
