"""
The core of an operator.

The packages are layers, from the top to the bottom. Each package may import those below it, and all
cogs:

* `reactor`: the life of an operator: what is watched, and who may work.
* `path`: the path of every event, from the watch to the PATCH.
* `engines`: the aspects of an operator: daemons, indexing, admission, peering, etc.
* `actions`: calling one handler, and what follows from its outcome.
* `intents`: what the operator's author has declared, and what it matches.
"""
