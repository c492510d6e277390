"""
What can be configured: the settings, and the storages of what must be remembered on the objects.

It may import the structures, the primitives of asyncio, and the helpers. It guarantees that nothing
here is global or does any I/O, and that what the storages write is what other versions of Kopf
read.
"""
