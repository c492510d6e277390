"""
Parts that would be useful without Kopf: a client of Kubernetes, and the structures of its objects.

The packages are layers, from the top to the bottom. Each package may import only those below it:

* `cluster`: which resources and namespaces a cluster has.
* `clients`: requests to the API server; `logins`: credentials for them; `serving`: HTTP servers.
* `configs`: the settings, and the storages of the progress and the last-handled state.
* `structs`: the data: bodies, patches, diffs, resources, credentials.
* `aiokits`: additions to asyncio.
* `helpers`: everything that has nothing to do with Kubernetes and asyncio.

Nothing here knows of handlers, registries, or operators.
"""
