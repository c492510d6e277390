"""
Serving: HTTP servers for anybody, by ``aiohttp.web``. Nobody who reaches the port is trusted.

`exchanges` are requests, responses, and the policy of a server: what a client may do. `inbound` are
the connections, `listeners` the sockets that accept them. aiohttp parses the requests and writes
the responses; the policies are applied here.

The package may import the asyncio primitives and the helpers. It guarantees that no client has an
effect on other clients, whatever it sends or fails to send, and that nothing is left open when a
listener is closed.

`inbound` and `listeners` import ``aiohttp.web``, which takes time and memory: import them when a
server starts.
"""
