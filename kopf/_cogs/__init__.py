"""
Parts that are useful also without Kopf: for talking to Kubernetes, and for handling its objects.

The rooms, from the top to the bottom; each may import those below it, and nothing above: `clients`
(HTTP to the API), `configs` (settings and storages), `structs` (what the data is), `aiokits`
(primitives of asyncio), `helpers` (what has nothing to do with Kubernetes). Nothing here knows of
handlers, registries, or operators.
"""
