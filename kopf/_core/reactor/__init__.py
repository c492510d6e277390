"""
The life of an operator, and the path of every event: watch, informer, inbox, work queue, handlers.

The package may import all of the core and the cogs. The package guarantees:

* At most one reconciliation runs for an object at a time.
* The newest state of every object reaches all handlers that match.
* No task is left behind when the operator exits.
"""
