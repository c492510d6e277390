"""
The name of the machine, as people outside of it know the machine, and names that lead to it.
"""
import ipaddress
import socket
import urllib.parse

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


def is_own(header: str, *names: str) -> bool:
    """
    Whether a ``Host`` header has an IP address, ``localhost``, or one of the names.

    If not, the request can be one of a web page by DNS rebinding: the owner of a page can point the
    name of the page to this machine, and browsers then take a server here for that of the page.
    """
    try:
        name = urllib.parse.urlsplit(f"//{header}").hostname or ''
        return name in ('localhost', *map(str.lower, names)) or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
