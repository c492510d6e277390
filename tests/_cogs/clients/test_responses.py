import pytest

from tests._cogs.clients import responses
from tests._cogs.clients.responses import RESPONSES, judge, read_by_the_book, read_responses
from tests._cogs.serving.corpus import read_table

TABLE = read_table(responses.TABLE)
PARAMS = pytest.mark.parametrize('name', RESPONSES)


@pytest.fixture(scope='module')
def ours():
    return {size: read_responses(size) for size in (None, 1, 7, 4096)}


def test_the_table_has_all_responses_and_no_others():
    assert sorted(TABLE) == sorted(RESPONSES)


@PARAMS
def test_the_client_judges_as_the_table_says(ours, name):
    response, book = ours[None][name], read_by_the_book(RESPONSES[name])
    verdicts, why = TABLE[name]
    assert [judge(response), judge(book)] == verdicts
    assert bool(why) == (verdicts == ['+', '!'])
    if verdicts == ['+', '+']:
        assert (response[0], response[2]) == (book[0], book[2])


@PARAMS
@pytest.mark.parametrize('size', [1, 7, 4096])
def test_responses_are_the_same_in_whatever_pieces_they_come(ours, name, size):
    whole, parts = ours[None][name], ours[size][name]
    if whole is not None or parts is None:
        assert parts == whole
    else:  # what follows a response can come too late to refuse that, too
        assert RESPONSES[name].partition(b'\r\n\r\n')[2] not in (b'', parts[2])
