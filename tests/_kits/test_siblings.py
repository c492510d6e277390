import os

import pytest

from kopf._kits import siblings


@pytest.mark.parametrize(('number', 'expected'), [(1, False), (2, True), (4, True)])
def test_processes_know_whether_there_are_others(number, expected, monkeypatch):
    for name, value in siblings.make_environment(number).items():
        monkeypatch.setenv(name, value)
    assert siblings.are_there() is expected


def test_process_by_itself_has_none(monkeypatch):
    monkeypatch.delitem(os.environ, siblings.VARIABLE, raising=False)
    assert not siblings.are_there()
