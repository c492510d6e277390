"""
Benchmarks: this Kopf, the release on PyPI, and a bare HTTP client, side by side on a real API.

What counts are the ratios within one run: absolute figures are those of one machine at one time. It
is one command, ``python -m benchmarks``; see ``--help``. The API is that of
``$KOPF_E2E_KUBECONFIG``, or one is started for the run, as for the end-to-end tests.

It may import the helpers of the end-to-end tests, and nothing of the framework: operators are
measured as processes, from outside.
"""

import os

# With this variable, a process compiles all modules again that were not compiled when they were
# installed: those of this Kopf, but not those of the release.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
