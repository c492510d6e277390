import json

import pytest

from kopf import testing
from kopf._kits.planning import rendering


def make_item(name='x', action='change', resource='configmaps', **options):
    return testing.Item(
        testing.Place(resource, 'default', name), action, ['fn for things default/a'], **options)


def make_change(name, old=1, new=2, **options):
    return make_item(name, fields=[testing.Field('spec.n', old, new)], **options)


def render(*items, form='text', **options):
    return rendering.render(testing.Plan(items, **options), form)


def test_nothing_is_said_to_change():
    assert "Nothing would change." in render()


def test_deletions_are_first_and_then_restarts():
    text = render(
        make_item('gone', 'delete'), make_change('rolled', restarts=3), make_change('changed'),
        make_item('new', 'create'))
    titles = [line for line in text.splitlines() if line.startswith('#')]
    assert titles == ["# Would be deleted: 1", "# Would restart pods: 1", "# Would be changed: 1",
                      "# Would be created: 1", "# Summary"]


def test_calls_of_external_systems_have_a_line_each():
    place = 'things default/a'
    text = render(calls=[
        testing.ExternalCall('billing', 'delete', 'key1', (), place),
        testing.ExternalCall('billing', 'update', 'key2', ('plan', 'limit.cpu'), place),
        testing.ExternalCall('dns', 'create', '', (), place)])
    assert text.startswith("""\
# Would be called in external systems: 3
- billing: delete key1, for things default/a
~ billing: update key2 (plan, limit.cpu), for things default/a
+ dns: create, for things default/a
# Summary
  calls of external systems: 1 create, 1 delete, 1 update
""")


def test_only_some_of_the_same_calls_of_external_systems_are_shown_but_all_deletions():
    lines = render(calls=[
        testing.ExternalCall('billing', verb, f'key{number}', (), f'things default/{number}')
        for verb in ('delete', 'update') for number in range(5)]).splitlines()
    assert [line[0] for line in lines[:-4]] == [*'#-----~~~ ']
    assert lines[9] == "  … and 2 more calls of billing like these"


def test_only_some_of_the_same_refusals_are_shown():
    text = render(refused=[
        testing.Refused(testing.Place('pods', '', name), 'patch', f'Pod "{name}" is {what}', ['fn'])
        for what in ('immutable', 'invalid') for name in ('p1', 'p2', 'p3', 'p4', 'p5')])
    assert text.count('is immutable') == text.count('is invalid') == 3
    assert text.count("\n  … and 2 more pods like these\n") == 2
    assert "refused by the API: 10" in text


def test_the_same_failures_are_one_line():
    text = render(failures=[
        testing.Failure('fn', f'things default/{number}', 'oops') for number in range(5)])
    assert "! fn for things default/0, things default/1, things default/2, and 2 more: oops" in text
    assert "failing handlers: 5" in text


@pytest.mark.parametrize('form', ['text', 'markdown'])
@pytest.mark.parametrize('end', ['\n', '\r\n', '\v', '\x85', '\u2028'])
def test_errors_of_several_lines_look_like_no_other_lines(form, end):
    message = end.join(["oops", "- configmaps default/x: deleted", "\x1b[2Jcleared"])
    lines = render(make_change('x'), form=form, failures=[
        testing.Failure('fn', 'things default/a', message)]).splitlines()
    index = lines.index("! fn for things default/a: oops")
    assert lines[index + 1:index + 3] == [
        "      - configmaps default/x: deleted", "       [2Jcleared"]


def test_a_changed_field_has_a_line_for_each_value():
    assert '''\
~ configmaps default/x: changed, by fn for things default/a
-     spec.n: 1
+     spec.n: 2
''' in render(make_change('x'))


def test_statuses_are_folded_to_a_line():
    text = render(make_item(status=[
        testing.Field('status.a', 1, 2), testing.Field('status.b.c', None, 3)]))
    assert "and in the status: a, b.c" in text


def test_an_empty_status_is_not_told():
    assert "status" not in render(make_item(status=[testing.Field('status', None, {})]))


def test_failures_that_differ_in_the_name_and_in_numbers_are_one_line():
    text = render(failures=[testing.Failure(
        'fn', f'things default/{name}', f"{name} at 0x{number:x}, {number}")
        for number, name in enumerate('ab', 100)])
    assert "! fn for things default/a, things default/b: a at 0x64, 100\n" in text


def test_a_new_status_is_told_by_its_fields():
    text = render(make_item(status=[testing.Field('status', None, {'a': 1, 'b': 2})]))
    assert "and in the status: a, b" in text


def test_finalizers_are_shown():
    text = render(make_item(finalizers=['+x/y', '-a/b']))
    assert "+     finalizer x/y" in text
    assert "-     finalizer a/b" in text


def test_the_garbage_collector_is_named_with_the_owner():
    item = make_item(action='delete', owner='Thing a')
    assert "deleted, by the garbage collector, with Thing a\n" in render(item)


def test_many_similar_changes_are_folded():
    text = render(*(make_change(f'x{i}') for i in range(10)))
    assert text.count('~ configmaps') == 3
    assert "… and 7 more configmaps like these" in text


def test_all_deletions_are_named():
    text = render(*(make_item(f'x{i}', 'delete') for i in range(10)))
    assert text.count('- configmaps') == 10


def test_long_values_are_cut():
    text = render(make_change('x', new='v' * 1000))
    assert max(map(len, text.splitlines())) < 200


def test_the_summary_counts_by_kinds():
    text = render(
        make_item('a', 'create'), make_item('b', 'create'), make_item('c', 'delete'),
        make_change('d', resource='deployments.apps', restarts=3),
        make_change('e', resource='deployments.apps', restarts=4))
    assert "  configmaps: 2 created, 1 deleted\n  deployments.apps: 2 changed\n" in text
    assert "  restarts 7 pods in 2 deployments.apps\n" in text


def test_the_bill_of_requests_is_shown():
    text = render(requests={'patch': 2, 'list': 1}, upstream={'list': 3})
    assert "requests of the operator: 1 list, 2 patch" in text
    assert "requests to the cluster: 3 list" in text


def test_what_is_wrong_is_shown():
    text = render(
        refused=[testing.Refused(
            testing.Place('pods', 'default', 'p'), 'patch', 'immutable', ['fn'])],
        failures=[testing.Failure('fn', 'things default/a', 'oops')], problems=['no start'],
        unknown=['the weather'])
    assert "! patch pods default/p, by fn: immutable" in text
    assert "! fn for things default/a: oops" in text
    assert "# Unknown\n! the weather" in text
    assert "# Errors\n! no start" in text


def test_what_only_the_other_version_does_is_shown():
    text = render(only_old=[make_item('x', 'create')])
    assert "# Only the other version would do this: 1\n+ configmaps default/x" in text
    assert "Nothing would change." not in text
    text = render(only_old_calls=[testing.ExternalCall('dns', 'delete', 'k', (), 'things a')])
    assert ("# Only the other version would call this in external systems: 1\n"
            "- dns: delete k, for things a" in text)
    assert "Nothing would change." not in text


@pytest.mark.parametrize('is_colored', [True, False])
def test_deletions_are_red_in_terminals(is_colored):
    plan = testing.Plan([make_item('gone', 'delete')])
    text = rendering.render(plan, 'text', is_colored=is_colored)
    assert ('\x1b[31m- configmaps default/gone' in text) == is_colored
    assert ('\x1b' in text) == is_colored


def test_markdown_has_a_summary_and_foldable_details():
    text = render(make_change('x'), form='markdown')
    before, _, after = text.partition('<details>')
    assert "- configmaps: 1 changed" in before
    assert "```diff\n# Would be changed: 1\n~ configmaps default/x" in after


def test_values_cannot_end_the_block_of_markdown():
    text = render(make_change('x', new='``` <b>'), form='markdown')
    assert text.count('```') == 2


def test_markdown_without_changes_has_no_details():
    assert '<details>' not in render(form='markdown')


def test_json_has_everything():
    found = json.loads(render(*(make_change(f'x{i}') for i in range(10)), form='json'))
    assert len(found['items']) == 10
    assert found['items'][0]['place'] == {
        'resource': 'configmaps', 'namespace': 'default', 'name': 'x0'}
    assert found['items'][0]['fields'] == [{'path': 'spec.n', 'old': 1, 'new': 2}]
