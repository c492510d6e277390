"""
How the machine is called, for those who look at it from outside.
"""

import socket

GENERIC_NAMES = frozenset({'', 'localhost', 'localhost.localdomain', 'localhost6'})


def get_descriptive_hostname() -> str:
    """
    Find the name of this machine that says the most; ``localhost`` if there is none.

    In a pod, it is the name of the pod. It can ask the DNS, so it may take a while, but never
    fails.
    """
    for get_name in (socket.gethostname, socket.getfqdn):
        try:
            name = get_name()
        except OSError:
            continue
        if name.lower() not in GENERIC_NAMES and not name.endswith('.ip6.arpa'):
            return name
    return 'localhost'
