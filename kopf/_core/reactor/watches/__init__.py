"""
What is watched: which resources, in which namespaces, and the watches of all of them.
"""
