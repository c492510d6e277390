"""
Typed kinds: the definitions of kinds, made of classes; and whether a definition may follow another.

It may import the core and the cogs, and the commands' `kopf._kits.commanding`; only the command
line and the public face import it. It guarantees that nothing of it is imported by operators that
declare no types.
"""
