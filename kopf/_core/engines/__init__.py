"""
The aspects of an operator, one a module, none of which knows another: activities, posting of
events, and the like.

It may import the actions, the intents, and the cogs. It guarantees that a failing aspect hurts
neither the other ones nor the handling of objects.
"""
