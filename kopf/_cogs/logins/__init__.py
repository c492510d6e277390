"""
Logins: credentials from kubeconfigs, from service accounts, and from third-party clients.

Nothing here talks to Kubernetes; the clients of Kubernetes get what is found here by a vault.
"""
