import pytest

from kopf._cogs.clients import errors
from kopf._core.path.objects import Item

LOST = errors.APIConnectionError("there was no response")


@pytest.fixture()
def item():
    return Item(source=None, uid='u', initial=False)


def attempt(item, *made, error=None):
    with item.attempting(*made):
        if error is not None:
            raise error


def make(version):
    return {'metadata': {'annotations': {'v': version}}}


@pytest.mark.parametrize('error', [LOST, errors.APIConflictError("no", earlier=LOST)])
def test_attempts_stay_until_their_result_is_known(item, error):
    for version in (1, 2):
        with pytest.raises(type(error)):
            attempt(item, make(version), error=error)
    assert item.unconfirmed == (make(1), make(2))
    attempt(item, make(3))
    assert item.unconfirmed == ()


def test_a_conflict_shows_that_its_attempt_was_not_applied(item):
    with pytest.raises(errors.APIConnectionError):
        attempt(item, make(1), error=LOST)
    with pytest.raises(errors.APIConflictError):
        attempt(item, make(2), error=errors.APIConflictError("no"))
    assert item.unconfirmed == (make(1),)


def test_the_same_attempt_again_and_again_takes_no_more_memory(item):
    for _ in range(10):
        with pytest.raises(errors.APIConnectionError):
            attempt(item, make(1), make(2), error=LOST)
    assert item.unconfirmed == (make(1), make(2))
