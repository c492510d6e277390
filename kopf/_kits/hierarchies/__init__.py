"""
Hierarchies: objects are prepared to be children of other objects, before they are created.

The objects are dicts, or those of pykube-ng, or models of the official client or of its
asynchronous twin; or any iterables of these. Nothing is sent anywhere.
"""
