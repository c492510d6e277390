import socket

import pytest

from kopf._cogs.helpers.hostnames import get_descriptive_hostname


def test_the_name_of_the_machine_is_preferred(monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'mypod-123')
    assert get_descriptive_hostname() == 'mypod-123'


@pytest.mark.parametrize('generic', ['localhost', 'localhost.localdomain', ''])
def test_a_full_name_is_taken_if_the_short_one_says_nothing(monkeypatch, generic):
    monkeypatch.setattr(socket, 'gethostname', lambda: generic)
    monkeypatch.setattr(socket, 'getfqdn', lambda: 'machine.example.com')
    assert get_descriptive_hostname() == 'machine.example.com'


def test_addresses_turned_to_names_say_nothing(monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'localhost')
    monkeypatch.setattr(socket, 'getfqdn', lambda: '1.0.0.0.ip6.arpa')
    assert get_descriptive_hostname() == 'localhost'


def test_failures_to_find_a_name_do_not_matter(monkeypatch):
    def fail():
        raise OSError("no names here")

    monkeypatch.setattr(socket, 'gethostname', fail)
    monkeypatch.setattr(socket, 'getfqdn', fail)
    assert get_descriptive_hostname() == 'localhost'
