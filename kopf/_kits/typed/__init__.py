"""
What follows from the declarations of an operator: the definitions of its kinds, and its rights.

It may import the core, the cogs, the commands' `kopf._kits.commanding`, and the facts of
`kopf._kits.sandbox` about kinds and schemas. It guarantees that nothing of it is imported by
operators that do not use it.
"""
