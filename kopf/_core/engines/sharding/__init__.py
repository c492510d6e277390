"""
Sharding: the replicas of an operator share its objects, with Leases of Kubernetes.

An object belongs to one of N shards by a stable hash. Each replica keeps a Lease of its own alive:
its membership. Each shard has a Lease which names the member that holds the shard; this one is
written only when the shard changes hands. A shard is free if its holder has left, or if the
membership of its holder has not been renewed in time, by the clock of the reader. The members take
free shards, and release those that are more than their fair share.

The modules: `hashing` and `partitions` find the shard of an object; `rosters` reads the Leases, and
`shares` decides who takes and releases what: both are pure; `holdings` shows other threads what
this replica holds, by the clock; `participations` keeps the Leases. The package may import the
actions, the intents, and the cogs. The package guarantees that a shard has at most one holder that
writes, as long as requests arrive within the time between the renewal deadline and the duration of
a Lease.
"""
