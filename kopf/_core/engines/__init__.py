"""
The engines: activities, admission, daemons, indexing, leadership, liveness, peering, posting,
reconciling, sharding.

Each engine is one aspect of an operator, in a module or a package of its own. The engines do not
import each other: the reactor connects them. They may import the actions, the intents, and the
cogs. The package guarantees that a failure of one engine affects neither the other engines nor the
handling of objects.
"""
