"""
The version of the framework: the only place where it is written down.
"""

version = '2.0.0.dev0'
version_tuple: tuple[int | str, ...] = (2, 0, 0, 'dev0')
commit_id: str | None = None
