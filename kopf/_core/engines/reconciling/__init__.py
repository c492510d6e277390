"""
Level-triggered reconciliation: `kopf.reconcile` handlers return the desired owned resources.

The handlers are functions of the present state: they are called again whenever the object or its
owned resources change, and no progress is kept on the object.
"""
