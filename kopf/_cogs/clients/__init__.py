"""
The client of the API server: credentials, requests, discovery, lists, watches, patches, events.

Nothing else in Kopf makes requests to Kubernetes. The package may import the settings, the
structures, and what is below these. The package guarantees:

* No secrets get into logs and errors.
* Requests are retried as the settings say.
* A watch goes on after any response of the API server and after any failure of the network.
"""
