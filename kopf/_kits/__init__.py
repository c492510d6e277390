"""
What the authors of operators may use, and the framework itself never does: helpers for hierarchies
of objects, webhook servers, the sandbox, tools for tests; and the commands of `kopf.cli`.

It may import the core and the cogs; nothing imports it but the public face. It guarantees that
nothing of it runs in an operator whose author has not asked for it.
"""
