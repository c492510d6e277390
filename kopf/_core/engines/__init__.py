"""
The aspects of an operator, each a module or a package, none of which knows another: activities,
admission, daemons, indexing, peering, posting, probing.

It may import the actions, the intents, and the cogs. It guarantees that a failing aspect hurts
neither the other ones nor the handling of objects.
"""
