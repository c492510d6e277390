"""
The path of every event: intake, inbox, work queue, turn of the object, its changes, the writes.

The package may import the engines, the actions, the intents, and the cogs. It guarantees:

* At most one reconciliation runs for an object at a time.
* The newest state of every object reaches all handlers that match.
* A turn of an object leaves no task behind.
"""
