"""
What people see of a running operator: its metrics, and its present state.

The views only listen and ask. They change nothing, and without them, nothing is done for them.
"""
