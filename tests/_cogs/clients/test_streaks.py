import asyncio
import logging

import pytest

from kopf import testing
from kopf._cogs.clients import errors, streaks


@pytest.fixture()
def streak(settings, caplog):
    caplog.set_level(logging.INFO)
    settings.networking.error_backoffs = [1, 2, 3]
    return streaks.Streak("Doing X", settings=settings, logger=logging.getLogger('x'))


BOO = errors.APIServerError("boo", status=500)


async def test_one_warning_is_for_all_failures_of_a_streak(streak, caplog):
    for _ in range(5):
        streak.fail(BOO)
    assert caplog.messages == ["Doing X has failed, and will be tried again: boo"]


@testing.virtual_time
async def test_the_end_is_told_if_the_beginning_was(streak, caplog):
    streak.fail(BOO)
    await asyncio.sleep(12)
    streak.fail(BOO)
    await asyncio.sleep(34)
    streak.end()
    streak.end()
    assert caplog.messages[1:] == ["Doing X works again, after 46s of failures."]


async def test_nothing_is_told_if_nothing_failed(streak, caplog):
    streak.end()
    assert not caplog.messages


async def test_a_new_streak_is_told_anew(streak, caplog):
    streak.fail(BOO)
    streak.end()
    streak.fail(BOO)
    assert [record.levelname for record in caplog.records] == ['WARNING', 'INFO', 'WARNING']


async def test_failures_that_use_to_pass_are_told_at_the_second_time(streak, caplog):
    gone = errors.APINotFoundError("gone", status=404)
    streak.fail(gone)
    assert not caplog.messages
    streak.fail(gone)
    assert len(caplog.messages) == 1


async def test_if_it_has_passed_nothing_is_told(streak, caplog):
    streak.fail(errors.APINotFoundError("gone", status=404))
    streak.end()
    assert not caplog.messages


async def test_pauses_follow_the_settings(streak):
    pauses = [streak.fail(BOO) for _ in range(4)]
    for pause, base in zip(pauses, [1, 2, 3, 3]):
        assert base <= pause <= base * 1.3


@pytest.mark.parametrize('method', ['ease', 'end'])
async def test_pauses_begin_anew(streak, method):
    streak.fail(BOO)
    streak.fail(BOO)
    getattr(streak, method)()
    assert streak.failures == 0
    assert streak.fail(BOO) <= 1.3


async def test_an_eased_streak_is_still_the_same_one(streak, caplog):
    streak.fail(BOO)
    streak.ease()
    streak.fail(BOO)
    assert len(caplog.messages) == 1


async def test_the_server_is_listened_to(streak):
    assert streak.fail(errors.APITooManyRequestsError("slow", status=429, retry_after=100)) == 100


async def test_what_does_not_pass_by_itself_is_told_also_later(streak, caplog):
    refused = errors.APIConnectionError("refused")
    untrusted = errors.APIUntrustedError("not trusted")
    forbidden = errors.APIForbiddenError('forbidden: User "x" cannot list', status=403)
    for error in [refused, BOO, untrusted, refused, untrusted, forbidden, BOO, forbidden]:
        streak.fail(error)
    assert [message.partition(': ')[2] for message in caplog.messages] == [
        'refused', 'not trusted',
        f"{forbidden}. Print the roles that the operator needs: kopf rbac"]
