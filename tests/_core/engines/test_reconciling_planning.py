import pytest

from kopf._core.engines.reconciling.desired import Key
from kopf._core.engines.reconciling.planning import Apply, Delete, arrange, plan

KEY = Key('', 'ConfigMap', 'ns', 'child')


class Wanted:
    """A child as it should be."""


class Known:
    """A child as it is."""

    def __init__(self, *, is_in_order=True, is_deleting=False, is_applied=True):
        self.is_in_order = is_in_order
        self.is_deleting = is_deleting
        self.is_applied = is_applied

    def is_as(self, wanted):
        return self.is_in_order


WANTED = Wanted()
FINE, DRIFTED = Known(), Known(is_in_order=False)
COPY = Known(is_in_order=False, is_applied=False)
DELETING = Known(is_deleting=True, is_in_order=False)


@pytest.mark.parametrize(('wanted', 'known', 'prune', 'steps'), [
    (None, None, True, []),
    (WANTED, None, True, [Apply(WANTED, None)]),
    (WANTED, FINE, True, []),
    (WANTED, DRIFTED, True, [Apply(WANTED, DRIFTED)]),
    (WANTED, DELETING, True, []),
    (None, FINE, True, [Delete(FINE)]),
    (None, DRIFTED, True, [Delete(DRIFTED)]),
    (None, DELETING, True, []),
    (None, COPY, True, []),
    (WANTED, COPY, True, [Apply(WANTED, COPY)]),
    (WANTED, None, False, [Apply(WANTED, None)]),
    (WANTED, DRIFTED, False, [Apply(WANTED, DRIFTED)]),
    (None, FINE, False, []),
], ids=[
    'nothing', 'absent', 'in order', 'drifted', 'wanted but ending', 'unwanted',
    'unwanted and drifted', 'ending', 'a copy', 'a wanted copy', 'absent, no pruning',
    'drifted, no pruning', 'unwanted, no pruning'])
def test_what_is_written_follows_from_what_is_wanted_and_known(wanted, known, prune, steps):
    assert plan({KEY: wanted} if wanted else {}, {KEY: known} if known else {}, prune=prune) == (
        steps)


def test_children_do_not_matter_to_each_other():
    other = KEY._replace(name='other')
    third = KEY._replace(name='third')
    assert plan({KEY: WANTED, third: WANTED}, {other: FINE, third: FINE}, prune=True) == [
        Apply(WANTED, None), Delete(FINE)]


class Named:
    def __init__(self, group, kind):
        self.key = Key(group, kind, None, 'child')


def test_what_others_can_need_is_written_first():
    namespace, definition, account, other, foreign = (Apply(Named(*kind), None) for kind in [
        ('', 'Namespace'), ('apiextensions.k8s.io', 'CustomResourceDefinition'),
        ('', 'ServiceAccount'), ('', 'ConfigMap'), ('example.com', 'Namespace')])
    steps = [other, Delete(FINE), account, definition, foreign, namespace]
    assert arrange(steps) == [
        [namespace], [definition], [account], [other, Delete(FINE), foreign]]
    assert arrange([other]) == [[other]] and arrange([]) == []
