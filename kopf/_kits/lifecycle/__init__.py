"""
The commands for when custom resources change or end: their objects are migrated to another version
in the storage, and are released when their operator is uninstalled.

It may import the core, the cogs, and the commands' `kopf._kits.commanding`. It guarantees that an
object is written only in the state in which it was seen, and that every command can be repeated.
"""
