"""
A client for the webhooks: bytes in, bytes out.
"""
import asyncio
import datetime
import json

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

REVIEW = {
    'apiVersion': 'admission.k8s.io/v1',
    'kind': 'AdmissionReview',
    'request': {
        'uid': 'uid1',
        'kind': {'group': 'kopf.dev', 'version': 'v1', 'kind': 'KopfExample'},
        'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': 'kopfexamples'},
        'operation': 'CREATE',
        'userInfo': {'username': 'admin'},
        'object': {'metadata': {'name': 'x', 'namespace': 'ns'}, 'spec': {}},
        'oldObject': None,
        'dryRun': False,
    },
}


def build_request(
        body=None, *, path='/id', method='POST', headers=(), version='1.1', length=None,
        content_type='application/json',
):
    raw = json.dumps(REVIEW).encode() if body is None else body
    length = len(raw) if length is None else length
    lines = [f'{method} {path} HTTP/{version}', 'Host: localhost',
             *([f'Content-Type: {content_type}'] if content_type else []),
             *([] if length is ... else [f'Content-Length: {length}']), *headers, '', '']
    return '\r\n'.join(lines).encode('latin-1') + raw


class Client:
    """One connection; to be used as an async context manager."""

    def __init__(self, port, context=None, host='127.0.0.1'):
        self.port = port
        self.host = host
        self.context = context

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(
            self.host, self.port, ssl=self.context,
            server_hostname='127.0.0.1' if self.context else None)
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    def send(self, raw):
        self.writer.write(raw)

    async def receive(self):
        """Receive one response: the status, the headers, the body."""
        head = (await self.reader.readuntil(b'\r\n\r\n')).decode()
        status, *lines = head.rstrip().split('\r\n')
        headers = dict(line.split(': ', 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get('Content-Length', 0)))
        return int(status.split()[1]), headers, body

    async def ask(self, raw):
        self.send(raw)
        return await self.receive()


async def ask(port, raw, **kwargs):
    async with Client(port, **kwargs) as client:
        return (await client.ask(raw))[0]


def write_identity(folder, name):
    """Write a self-signed certificate of a client, and its key; returns the paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        issuer_name=subject, subject_name=subject, public_key=key.public_key(),
        serial_number=1, not_valid_before=now - datetime.timedelta(days=1),
        not_valid_after=now + datetime.timedelta(days=1),
    ).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256())
    paths = folder / f'{name}.pem', folder / f'{name}-key.pem'
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()))
    return paths
