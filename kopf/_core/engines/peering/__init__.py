"""
Peering: operators share one peering object, so that one of them works while the others are paused.

Each operator keeps a record in the status of the peering object, and renews it regularly. An
operator whose record has expired counts as dead. So, an operator that could not renew its own
record in time must pause itself: others may have taken over.

The modules: `records` has the format of the records; `judging` decides what they mean, by pure
functions of the records and the time; `memberships` keeps the own record. The package may import
the actions, the intents, and the cogs. The package guarantees that of two operators that see each
other's records in time, only one works.
"""
