import copy
import pickle

import pytest

from kopf._cogs.structs.memos import Memo


def test_keys_are_attributes():
    assert Memo(x=1).x == 1


def test_attributes_are_keys():
    memo = Memo()
    memo.x = 1
    assert memo == {'x': 1}


def test_deleted_attributes_are_deleted_keys():
    memo = Memo(x=1)
    del memo.x
    assert memo == {}


def test_absent_attributes_are_named_when_read():
    with pytest.raises(AttributeError, match="There is no 'x' in the memo"):
        Memo().x


def test_absent_attributes_are_named_when_deleted():
    with pytest.raises(AttributeError, match="There is no 'x' in the memo"):
        del Memo().x


def test_absent_attributes_can_be_checked_for():
    assert not hasattr(Memo(), 'x')


def test_methods_of_dicts_remain():
    memo = Memo(keys='value')
    assert list(memo.keys()) == ['keys']


@pytest.mark.parametrize('duplicate', [
    copy.copy, copy.deepcopy, lambda memo: pickle.loads(pickle.dumps(memo))])
def test_copies_are_memos(duplicate):
    assert duplicate(Memo(x=[1])).x == [1]
