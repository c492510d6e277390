"""
Carrying one handler out: calling it, judging its outcome, keeping its progress, applying its patch,
and saying so in the log.

It may import the intents and the cogs. It guarantees that whatever a handler does ends as the
outcome of that handler, and that what is decided (whom to call, what to write, when to come back)
is decided by pure functions.
"""
