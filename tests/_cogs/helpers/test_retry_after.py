import datetime
import email.utils

import pytest

from kopf._cogs.helpers import ratelimits


@pytest.mark.parametrize('value, expected', [
    (None, None), ('', None), ('x', None), ('nan', None), ('inf', None),
    ('3', 3), ('1e9', 300), ('1.5', 1.5), ('-1', 0),
    ('Wed, 21 Oct 2015 07:28:00 GMT', 0),
    ('Wed, 21 Oct 2015 07:28:00', 0),
])
def test_retry_after_is_parsed(value, expected):
    assert ratelimits.parse_retry_after(value, limit=300) == expected


def test_retry_after_can_be_a_date():
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    value = email.utils.format_datetime(when, usegmt=True)
    seconds = ratelimits.parse_retry_after(value, limit=300)
    assert 95 <= seconds <= 100
