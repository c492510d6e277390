import importlib.metadata

import kopf
from kopf._cogs.helpers import versions


def test_the_version_is_that_of_the_package():
    assert kopf.__version__ == versions.version
    try:
        installed = importlib.metadata.version('kopf')
    except importlib.metadata.PackageNotFoundError:
        return
    assert installed == versions.version


def test_the_tuple_is_the_same_version():
    assert '.'.join(map(str, kopf.__version_tuple__)) == kopf.__version__
