"""
A Kubernetes API server in Python, for trying operators and for testing them.

Objects live in it: what `kubectl`, the official clients, and the framework do with a real API,
they can do with this one. It is a kit: the framework never imports it, and it imports nothing
of the framework's core. Nothing runs in it: a pod is an object, and no image is ever started.

A request comes in by `handling`, is parsed (`requests`), told apart (`access`), and carried out by
`reading`, `watching`, or `writing`, which know the kinds by `rules`. What is stored is bytes
(`storage`); what follows from changes is done beside the requests (`definitions`, `collecting`).

Where it differs from a real one, knowingly: answers are never protobuf; over plain HTTP, those
without credentials have all rights (clients do not send them there); conversion webhooks, custom
admission policies, quotas, and aggregated APIs are stored but do nothing; services have nothing
behind them that a webhook could be called at; descriptions are not in the schemas; objects are at
most 250 levels deep.
"""
