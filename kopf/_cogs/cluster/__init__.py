"""
What a cluster has: its resources and namespaces, kept up to date.

`discovery` observes them; `tracking` knows from the CRDs when `discovery` must discover the
resources again.

The package may import the client and what is below it. It guarantees that a resource or a namespace
that comes is noticed, also after any failure, as long as the operator is allowed to watch.
"""
