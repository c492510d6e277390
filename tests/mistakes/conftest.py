import logging
import os
import sys

import pytest

import kopf


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Restore what the command line changes in the process."""
    for key in os.environ:
        if key.startswith('KOPF_'):
            monkeypatch.delenv(key)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setattr(sys, 'modules', dict(sys.modules))
    root = logging.getLogger()
    log_handlers, level = list(root.handlers), root.level
    registry = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    yield
    kopf.set_default_registry(registry)
    root.handlers[:] = log_handlers
    root.setLevel(level)
