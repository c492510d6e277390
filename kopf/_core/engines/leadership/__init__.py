"""
Leadership: the replicas of an operator elect the one that works, by a Lease of Kubernetes.

The algorithm is that of client-go (``tools/leaderelection``), so that an operator in Go with the
same Lease excludes this one, and is excluded by it. The replica in the Lease is the leader. It
renews the Lease all the time. The others take over when the Lease has not changed for its duration
by their own clocks. A leader that could not renew the Lease in time stops all writes before that.

The modules: `electing` decides what to do next, by pure functions of the Lease and the time;
`candidacies` carries that out for one Lease, in a thread of its own, as handlers can block the
event loop of the operator. The package may import the actions, the intents, and the cogs. The
package guarantees that of all replicas whose requests arrive within the time between the renewal
deadline and the duration of the Lease, only one writes at a time.
"""
