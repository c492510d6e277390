"""
Daemons and timers: they accompany the objects that match their filters, as long as they exist.

A sleeping companion (a timer between its ticks, a daemon between its retries) is an entry in the
event loop's heap of timers; a task, or a thread, exists only while its function runs. At any time,
there is at most one companion per object and handler.
"""
