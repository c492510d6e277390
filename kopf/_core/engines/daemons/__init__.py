"""
Daemons and timers: handlers that run as long as their object exists and matches their filters.

A *companion* is the daemon or timer of one handler for one object. A companion sleeps (e.g. a timer
between two calls, a daemon between two attempts) without a task or a thread of its own: there can
be many thousands. A task, and for synchronous handlers a thread, exists only while the handler
runs.

The modules: `companions` is what daemons and timers have in common, what they share, and how they
are stopped; `daemons` and `timers` are the two kinds of companions; `spawning` starts and stops
them for a state of the object. The package may import the actions, the intents, and the cogs. The
package guarantees:

* There is at most one companion for an object and a handler at any time; abandoned ones aside.
* A companion that does not stop when asked is cancelled, and finally abandoned, with the backoff
  and timeout of its handler.
"""
