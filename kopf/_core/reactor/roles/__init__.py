"""
Who may work: the operator that leads, that is not paused by a peer, or that holds the shard.
"""
