"""
The only place that talks HTTP to Kubernetes: logging in, requests, scanning, listing, watching,
patching, posting.

It may use the settings and the structures, and nothing of the framework's core. It guarantees that
no secret gets into a log or an error, that requests are tried again as the settings say, and that a
watch outlives whatever the API answers.
"""
