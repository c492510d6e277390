"""
Parts that have nothing to do with Kubernetes and asyncio: importing of the user's files, changes
of files, formats of the log, host names, rate limits, the version.

The package may import nothing else of Kopf.
"""
