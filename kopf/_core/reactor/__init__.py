"""
Who starts whom, and the way of an event: from the watch by the line of its object to the handlers.

It may import all of the core and the cogs. It guarantees that no two passes run for one object at a
time, that the newest state of every object is handled by all whom it concerns, and that no task is
left behind when the operator exits.
"""
