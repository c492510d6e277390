"""
The event flow: intake, inbox, work queue, turn of the object, handling of its changes, writes.

The package may import the engines, the actions, the intents, and the cogs. It guarantees:

* At most one reconciliation runs for an object at a time.
* The newest state of every object reaches all handlers that match.
* A turn of an object leaves no task behind.
"""
