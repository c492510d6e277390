"""
Hierarchies: preparation of owned resources before their creation.

The objects are dicts, objects of pykube-ng, models of the clients ``kubernetes`` and
``kubernetes_asyncio``, or iterables of these.

The package may import the core and the cogs, but none of these libraries. It guarantees that no
requests are sent: only the given objects are changed, in place.
"""
