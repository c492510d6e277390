"""
Testing of operators: single handlers, and operators on an API that is made for the test.

The package may import the core, the cogs, and the sandbox. It guarantees that everything started by
a test ends with its block or fixture: servers, operators, tasks, and threads. If the package is not
used, nothing of it is imported, patched, or running.
"""
