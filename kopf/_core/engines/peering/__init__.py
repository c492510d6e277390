"""
Peering: operators that meet in one object of the cluster, so that one works and the others wait.

What the records of the others mean is decided by pure functions of them and of the time. To be a
member means to renew one's own record until leaving; who cannot do so in time is dead to the others
and has to know that.
"""
