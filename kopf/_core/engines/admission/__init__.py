"""
Admission: objects are checked and changed by handlers before the API stores them.

`webhooks` arranges handlers into webhooks, and describes these to the API; `questions` and
`answers` are the two halves of a review; `reviewing` makes the one of the other by calling the
handlers; `managing` keeps the descriptions in the cluster up to date; `serving` runs the server.

An operation is allowed only if all handlers that it concerns have succeeded. Nothing of a review
is kept when it is over.
"""
