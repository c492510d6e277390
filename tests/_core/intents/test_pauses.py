import datetime

import pytest

from kopf._core.intents import pauses
from kopf._core.intents.pauses import Pause

NOW = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)


def find(text, **meta):
    return pauses.find(
        {'metadata': {'annotations': {'kopf.dev/paused': text}, **meta}}, 'kopf.dev/paused')


@pytest.mark.parametrize(('text', 'pause'), [
    ('Moving the disks', Pause('Moving the disks')),
    ('', Pause('')),
    ('true', Pause('')),
    ('TICKET=5; x', Pause('TICKET=5; x')),
    ('x;until=2026-12-01T00:01Z', Pause('x', NOW + datetime.timedelta(minutes=1))),
    ('until = 2026-12-01T03:00+02:00', Pause('', NOW + datetime.timedelta(hours=1))),
    ('until=2026-12-02', Pause('', NOW + datetime.timedelta(days=1))),
    ('until=2026-12-01t00:00:00z', Pause('', NOW)),
    ('until=9999-12-31T23:59-01:00',
     Pause('', datetime.datetime(9999, 12, 31, 23, 59, tzinfo=datetime.UTC))),
    ('until=0001-01-01T00:00+14:00', Pause('', datetime.datetime(1, 1, 1, tzinfo=datetime.UTC))),
    ('x; deletion=allow', Pause('x', None, True)),
    ('x; deletion=wait', Pause('x')),
])
def test_annotations(text, pause):
    assert find(text) == pause


@pytest.mark.parametrize('text', ['false', ' False '])
def test_false_is_no_pause(text):
    assert find(text) is None


@pytest.mark.parametrize('raw', [
    {'metadata': {}}, {'metadata': {'annotations': None}}, {'metadata': {'annotations': {}}}])
def test_there_is_no_pause_without_the_annotation(raw):
    assert pauses.find(raw, 'kopf.dev/paused') is None
    assert pauses.find(raw, None) is None


@pytest.mark.parametrize(('text', 'problem'), [
    ('x; until=tomorrow', "'until=tomorrow' is no time in ISO 8601"),
    ('x; deletion=yes', "'deletion=yes' is neither deletion=allow nor deletion=wait"),
])
def test_what_is_not_understood_is_a_problem_and_the_pause_goes_on(text, problem):
    pause = find(text)
    assert pause == Pause('x', problem=problem)
    assert pause.describe() == f"The object is paused: x ({problem})"


@pytest.mark.parametrize('text', [
    'until=junk; until=2000-01-01', 'until=2000-01-01; until=junk'])
def test_a_pause_has_no_end_if_one_of_its_times_is_not_understood(text):
    assert find(text).until is None


def test_reasons_forge_no_lines_and_do_not_control_terminals():
    text = find('x\nERROR: \x1b[31mall is lost').describe()
    assert text == "The object is paused: x\n      ERROR:  [31mall is lost"


def test_pauses_end_at_their_time():
    assert find('until=2026-12-01T00:00Z').is_over(NOW)
    assert not find('x').is_over(NOW)
    pause = find('x; until=2026-12-01T00:00:01Z')
    assert not pause.is_over(NOW)
    assert pause.describe() == "The object is paused until 2026-12-01 00:00:01 UTC: x"


def test_deletions_are_not_paused_if_they_are_allowed():
    assert find('x; deletion=allow', deletionTimestamp='2026-11-30T00:00:00Z') is None
    assert find('x', deletionTimestamp='2026-11-30T00:00:00Z') == Pause('x')
