"""
The renewal of a Lease, by the clock of its tenure.
"""
import asyncio
import logging

import pytest

from kopf import testing
from kopf._cogs.aiokits.tenures import Tenure
from kopf._cogs.clients import errors
from kopf._cogs.clients.leasing import LeaseClient
from kopf._cogs.clients.renewals import Renewal


class Lease:
    """A renewal with a deadline of 10 seconds, and when it was attempted."""

    def __init__(self, *failures, lasts=0):
        self._now = asyncio.get_running_loop().time
        self.tenure = Tenure(self._now)
        self.renewal = Renewal(
            client=LeaseClient(None, namespace='ns', deadline=10), deadline=10,
            tenure=self.tenure, verbs='get, update',
            quiet=(errors.APIConflictError,), logger=logging.getLogger('test'))
        self.failures = list(failures)
        self.lasts = lasts
        self.times = []

    async def renew(self):
        self.times.append(self._now())
        sent = self.renewal.now
        if await self.renewal.attempt('renew', "Could not renew it: ", self._write()):
            self.renewal.note(sent)

    async def _write(self):
        await asyncio.sleep(self.lasts)
        if self.failures:
            raise self.failures.pop(0)
        return 'written'

    async def keep(self, **kwargs):
        await self.renewal.keep(self.renew, get_pause=lambda: 2, **kwargs)


def fail(text):
    return errors.APIServerError(text, status=500)


@testing.virtual_time
async def test_without_failures_it_goes_on():
    lease = Lease()
    lease.renewal.note(lease.renewal.now)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.keep(), 100)
    assert lease.tenure.term == 1
    assert len(lease.times) == pytest.approx(50, abs=1)


@testing.virtual_time
async def test_it_ends_with_the_term_after_failures():
    lease = Lease(*[fail("boo")] * 100)
    lease.renewal.note(lease.renewal.now)
    await lease.keep()
    assert asyncio.get_running_loop().time() == pytest.approx(10)
    assert lease.renewal.explain_loss('renew') == "10 seconds, boo"


@testing.virtual_time
async def test_it_ends_with_the_term_while_a_request_hangs():
    lease, timeouts = Lease(lasts=1000), []
    lease.renewal.note(lease.renewal.now)
    await lease.keep(on_timeout=lambda: timeouts.append(1))
    assert asyncio.get_running_loop().time() == pytest.approx(10)
    assert (lease.tenure.term, timeouts) == (None, [1])


@testing.virtual_time
async def test_failures_are_logged_once_until_a_success_or_another_one(caplog):
    lease = Lease(
        fail("boo"), fail("boo"), errors.APIConflictError("quiet", status=409), fail("other"))
    for _ in range(5):
        await lease.renew()
    lease.failures.append(fail("other"))
    await lease.renew()
    assert caplog.messages == [
        f"Could not renew it: {text}" for text in ["boo", "other", "other"]]


@testing.virtual_time
async def test_terms_are_counted_by_the_time_of_the_request():
    lease = Lease(lasts=3)
    await lease.renew()
    assert lease.tenure.left == pytest.approx(7)
    assert not lease.renewal.note(lease.renewal.now)
    assert lease.tenure.term == 1
    assert lease.renewal.note(lease.renewal.now, anew=True)
    assert lease.tenure.term == 2
