import asyncio
import ssl

from kopf._cogs.aiokits import transports
from kopf._kits.webhooks import certificates


async def test_a_tls_connection_can_be_aborted_after_it_was_closed_twice(tmp_path):
    certificate, key = certificates.build_certificate(['127.0.0.1'])
    (tmp_path / 'both.pem').write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / 'both.pem')
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(cadata=certificate.decode())
    server = await asyncio.start_server(
        lambda reader, writer: writer.close(), '127.0.0.1', 0, ssl=context)
    async with server:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *server.sockets[0].getsockname(), ssl=trusting)
        transport.close()
        transport.close()
        transports.abort(transport)
        await asyncio.sleep(0)
        assert transport.is_closing()
