"""
Calling one handler: its outcome, its progress, its patch, and its log.

The package may import the intents and the cogs. The package guarantees:

* All handlers are called from one place, `execution`.
* Whatever a handler does, the result is an outcome of that handler, never an error of Kopf.
* Pure functions decide which handlers to call, what to write, and when to retry.
"""
