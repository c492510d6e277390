"""
The version of Kopf. The package metadata are made from it.
"""

version = '2.0.0.dev0'
version_tuple: tuple[int | str, ...] = (2, 0, 0, 'dev0')
commit_id: str | None = None
