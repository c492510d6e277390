"""
Projects of operators: a first one to begin with, and what the deployment of one consists of.

It may import the core, the cogs, the commands' `kopf._kits.commanding`, `kopf._kits.typed`, the
servers of `kopf._kits.webhooks`, and the names of `kopf._kits.sandbox`. It guarantees that nothing
of it is imported by operators.
"""
