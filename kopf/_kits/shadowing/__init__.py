"""
Shadows: a new version of an operator beside the one in production, which writes nothing there.

What the new version writes stays in a sandbox over the cluster. What the version in production
writes is kept apart: the new version does not see it, and it is what the own writes are compared
with. The modules: `evidence` tells who has changed what; `verdicts` compares; `twins` keeps both
states of each object; `shadows` runs all of that with an operator.
"""
