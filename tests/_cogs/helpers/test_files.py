import os

from kopf._cogs.helpers.files import look


def test_files_look_different_when_they_are_changed_replaced_linked_or_removed(tmp_path):
    first, second, link = tmp_path / 'first', tmp_path / 'second', tmp_path / 'link'
    first.write_text('a')
    second.write_text('a')
    link.symlink_to(first)
    seen = [look([link])]
    assert look([link]) == seen[0]
    first.write_text('bb')
    seen.append(look([link]))
    os.replace(second, first)
    seen.append(look([link]))
    first.unlink()
    seen.append(look([link]))
    assert all(a != b for a, b in zip(seen, seen[1:]))


def test_what_is_no_path_looks_like_an_absent_file(tmp_path):
    assert look(['a\0b']) == look([tmp_path / 'absent'])
