"""
Additions to asyncio: clocks, alarms, limits, flags, tasks, threads, wake-ups, workers, sharing.

The package may import only the helpers, and knows nothing of Kubernetes. The package guarantees
that no task is left behind: what starts a task, also awaits or cancels it.
"""
