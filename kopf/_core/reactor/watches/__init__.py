"""
What is watched: which resources there are, in which namespaces, and the watches of all of them.
"""
