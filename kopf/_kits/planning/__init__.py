"""
Plans: what an operator would do in a cluster, without doing it, and how that is shown.

The operator runs in virtual time on a sandbox over the cluster. It may import the sandbox and the
test tools, whose runs it extends.
"""
