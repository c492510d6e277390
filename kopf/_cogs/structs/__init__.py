"""
The structures of data: bodies of objects, patches, diffs, resources, credentials, memos.

The package may import only aiokits and helpers. The package guarantees:

* The functions are pure: no I/O, no clock, no logging. Only credentials read the files that they
  name.
* The bodies that come from the API server are never modified.
"""
