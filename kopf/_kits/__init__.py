"""
What the authors of operators may use, and the core itself never does: helpers for hierarchies of
objects, for Kubernetes events and conditions, webhook servers, metrics and traces, the sandbox,
tools for tests; and the functions and commands that run an operator, together with what its author
has asked for.

It may import the core and the cogs; nothing imports it but the public face. It guarantees that
nothing of it runs in an operator whose author has not asked for it.
"""
