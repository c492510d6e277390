"""
Ports for servers of the tests.
"""
import random
import socket


def find_free_ports(count: int) -> int:
    """
    Find so many free ports in a row; returns the first one.

    No connections have these as their own ports: the system takes others for them.
    """
    while True:
        port = random.randrange(20000, 30000)
        try:
            for offset in range(count):
                with socket.socket() as sock:
                    sock.bind(('127.0.0.1', port + offset))
        except OSError:
            continue
        return port
