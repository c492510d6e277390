"""
Serving: HTTP servers for anybody, by ``aiohttp.web``. Nobody who reaches the port is trusted.

`exchanges` are requests, responses, and the policy of a server: what a client may do. `inbound` are
the sockets and their connections. aiohttp parses the requests and writes the responses; the
policies are applied here. `pages` is a server of pages, such as health checks and metrics, in a
thread of its own; `endpoints` are their URLs.

The package may import the asyncio primitives and the helpers. It guarantees that no client has an
effect on other clients, whatever it sends or fails to send, and that nothing is left open when a
listener is closed.

`inbound` imports ``aiohttp.web``, which takes time and memory: import it when a server starts.
"""
