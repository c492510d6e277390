"""
Conversion of custom resources between the versions of their kinds.

It may import the core, the cogs, the typed kinds (`kopf._kits.typed`), and the schemas of
`kopf._kits.sandbox`. It guarantees that nothing of it is imported by operators that do not use it.
"""
