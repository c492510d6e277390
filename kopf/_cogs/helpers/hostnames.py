"""
The name of the machine, as people outside of it know the machine.
"""

import socket

GENERIC_NAMES = frozenset({'', 'localhost', 'localhost.localdomain', 'localhost6'})


def get_descriptive_hostname() -> str:
    """
    Find the most descriptive name of this machine; ``localhost`` if there is none.

    In a pod, it is the name of the pod. The function can make requests to DNS, so it can block for
    some seconds. It never fails.
    """
    for get_name in (socket.gethostname, socket.getfqdn):
        try:
            name = get_name()
        except OSError:
            continue
        if name.lower() not in GENERIC_NAMES and not name.endswith('.ip6.arpa'):
            return name
    return 'localhost'
