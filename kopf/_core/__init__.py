"""
What makes an operator an operator.

The rooms, from the top to the bottom; each may import those below it and all cogs, and nothing
above: `reactor` (who starts whom, and the way of an event), `engines` (the aspects of an operator),
`actions` (carrying one handler out), `intents` (what the author declared, and what it matches).
"""
