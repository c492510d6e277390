import logging
import os
import sys

import pytest

import kopf


@pytest.fixture(autouse=True)
def _restored(monkeypatch, tmp_path_factory):
    """Restore what the command line changes in the process."""
    for key in os.environ:
        if key.startswith('KOPF_'):
            monkeypatch.delenv(key)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    folder = str(tmp_path_factory.getbasetemp())
    root = logging.getLogger()
    log_handlers, level = list(root.handlers), root.level
    registry = kopf.get_default_registry()
    kopf.set_default_registry(kopf.OperatorRegistry())
    yield
    kopf.set_default_registry(registry)
    root.handlers[:] = log_handlers
    root.setLevel(level)
    for name, module in list(sys.modules.items()):  # those of Kopf, once imported, must stay
        if (getattr(module, '__file__', None) or '').startswith(folder):
            del sys.modules[name]
