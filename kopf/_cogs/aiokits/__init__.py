"""
Primitives of asyncio that the standard library lacks: toggles, tasks, wake-ups, queues.

It may import only the helpers. It guarantees that nothing here knows of Kubernetes, and that no
task is left behind: whoever starts one, also awaits or cancels it.
"""
