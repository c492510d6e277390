"""
The settings, and the storages of what Kopf keeps on the objects.

The package may import the structures, aiokits, and helpers. The package guarantees:

* Nothing here is global or does any I/O.
* Other versions of Kopf can read what the storages write, and the other way round.
"""
