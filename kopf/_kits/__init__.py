"""
What the authors of operators may use, and the framework itself never does: helpers for hierarchies
of objects, for tests, and the like.

It may import the core and the cogs; nothing imports it but the public face.
"""
