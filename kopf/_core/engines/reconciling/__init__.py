"""
Level-triggered reconciliation: `kopf.reconcile` handlers say which owned resources should be there.

The handlers are functions of the present state: they are called again whenever the object or its
owned resources change, and no progress is kept on the object.
"""
