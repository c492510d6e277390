"""
What the data is: bodies of objects, patches, diffs, references to resources, credentials, memos.

It may import only the primitives of asyncio and the helpers. It guarantees that functions here are
pure: no I/O, no clock, no logging, but that credentials read the files that they name; and that
bodies that came from the API are never modified.
"""
