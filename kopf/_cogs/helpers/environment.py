"""
The environment: what it says about how to reach a server, by the rules of curl and kubectl.
"""
import contextlib
import ipaddress
import netrc
import os
import urllib.parse
import urllib.request


def find_login(host: str) -> tuple[str, str] | None:
    """Find the username and the password for the host in ``~/.netrc``."""
    path = os.environ.get('NETRC') or os.path.expanduser('~/.netrc')
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc(path).authenticators(host)
        if found is not None:
            username, account, password = found
            return username or account, password
    return None


def find_proxy(url: urllib.parse.SplitResult) -> str | None:
    """Find the proxy for the URL in the environment variables; None if there should be none."""
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(url.netloc.rpartition('@')[-1]) or any(
            _has_address(network, url.hostname) for network in proxies.get('no', '').split(',')):
        return None
    proxy = proxies.get(url.scheme)
    # The scheme can be omitted, as for kubectl and curl.
    return f'http://{proxy}' if proxy and '://' not in proxy else proxy


def _has_address(network: str, host: str | None) -> bool:
    """Whether it is a network with this address: kubectl excludes these, but Python does not."""
    try:
        return ipaddress.ip_address(host or '') in ipaddress.ip_network(network.strip(), False)
    except ValueError:
        return False
