"""
Calling one handler: its outcome, its progress, its patch, and its log.

For the call: `execution` makes one attempt, from the kwargs to the outcome; `invocation` calls the
function, in the event loop or in a thread; `inflight` knows the calls that are not over yet.

The package may import the intents and the cogs. The package guarantees:

* All handlers are called from one place, `execution`.
* Whatever a handler does, the result is an outcome of that handler, never an error of Kopf.
* Pure functions decide which handlers to call, what to write, and when to retry.
"""
