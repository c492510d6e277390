import pytest

from kopf._cogs.structs.indices import Index, Store


@pytest.mark.parametrize('cls', [Index, Store])
def test_interfaces_cannot_be_created(cls):
    with pytest.raises(TypeError):
        cls()


def test_stores_need_only_what_collections_need():
    class ListStore(Store[int]):
        def __len__(self): return 1
        def __iter__(self): return iter([1])
        def __contains__(self, item): return item == 1

    assert list(ListStore()) == [1]
