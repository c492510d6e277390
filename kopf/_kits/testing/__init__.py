"""
Testing of operators: handlers by themselves, and operators on an API that is made for the test.

It may import the core, the cogs, and the sandbox; only the public face and the runner import it. It
guarantees that what a test has started is over when its block or fixture is: servers, operators,
tasks, threads; and that nothing of it is imported, patched, or running where it is not used.
"""
