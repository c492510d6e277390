"""
Things from outside of Kubernetes and asyncio: loading of scripts and modules, host names, versions,
adapters to third-party libraries.

It may import nothing else of Kopf. It guarantees that optional libraries are imported only when
they are used, and that their absence is not an error until then.
"""
