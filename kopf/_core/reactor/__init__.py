"""
The life of an operator: what starts and stops, what is watched, and who may work.

The package may import all of the core and the cogs. The package guarantees:

* The news of every watch goes to the path of events of the operator, or of the object's shard.
* No task is left behind when the operator exits.
"""
