import base64
import dataclasses
import datetime
import os
import ssl
import subprocess

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kopf._cogs.structs import credentials
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, LoginError, parse_url

UTC = datetime.UTC
EAST = datetime.timezone(datetime.timedelta(hours=2))
URL = 'https://host:6443'


@pytest.fixture(scope='session')
def pems(tmp_path_factory):
    folder = tmp_path_factory.mktemp('pems')
    crt, key = folder / 'tls.crt', folder / 'tls.key'
    try:
        subprocess.run([
            'openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2',
            '-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1',
            '-keyout', key, '-out', crt,
        ], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("There is no openssl to make certificates with.")
    return crt, key


# The container.


def test_fields_are_by_keywords_only():
    with pytest.raises(TypeError):
        ConnectionInfo(URL)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ConnectionInfo(server=URL).token = 'x'


def test_it_is_comparable_and_hashable():
    assert ConnectionInfo(server=URL, token='x') == ConnectionInfo(server=URL, token='x')
    assert ConnectionInfo(server=URL, token='x') != ConnectionInfo(server=URL, token='y')
    assert len({ConnectionInfo(server=URL), ConnectionInfo(server=URL)}) == 1


@pytest.mark.parametrize('prefix', ['ca', 'certificate', 'private_key'])
def test_paths_and_data_exclude_each_other(prefix):
    with pytest.raises(ValueError, match="Both"):
        ConnectionInfo(server=URL, **{f'{prefix}_path': '/x', f'{prefix}_data': b'y'})


def test_secrets_are_not_shown():
    info = ConnectionInfo(
        server='https://user:s3cret@host/', proxy_url='http://user:s3cret@proxy:80/',
        token='s3cret', username='someone', password='s3cret', certificate_data='s3cret',
        private_key_data=b's3cret', default_namespace='ns1')
    for text in [repr(info), str(info), f'{info}']:
        assert 's3cret' not in text
        assert 'someone' in text
        assert 'ns1' in text
        assert 'https://host/' in text
        assert 'http://proxy:80/' in text


def test_only_what_is_set_is_shown():
    assert repr(ConnectionInfo(server=URL)) == f"ConnectionInfo(server='{URL}')"


@pytest.mark.parametrize('expiration, expired', [
    (None, False),
    (datetime.datetime(2020, 1, 1, 11, 59, 59), True),
    (datetime.datetime(2020, 1, 1, 12, 0, 0), True),
    (datetime.datetime(2020, 1, 1, 12, 0, 1), False),
    (datetime.datetime(2020, 1, 1, 11, 59, 59, tzinfo=UTC), True),
    (datetime.datetime(2020, 1, 1, 13, tzinfo=EAST), True),
    (datetime.datetime(2020, 1, 1, 15, tzinfo=EAST), False),
])
def test_expiration_without_a_timezone_is_in_utc(expiration, expired):
    info = ConnectionInfo(server=URL, expiration=expiration)
    assert info.is_expired(datetime.datetime(2020, 1, 1, 12, tzinfo=UTC)) is expired


# Headers.


@pytest.mark.parametrize('kwargs, expected', [
    ({}, {}),
    ({'token': 'x'}, {'Authorization': 'Bearer x'}),
    ({'token': 'x', 'scheme': 'Digest'}, {'Authorization': 'Digest x'}),
    ({'scheme': 'Negotiate'}, {'Authorization': 'Negotiate'}),
    ({'username': 'u', 'password': 'p'}, {'Authorization': 'Basic dTpw'}),
    ({'username': 'u', 'password': 'p', 'token': 'x'}, {'Authorization': 'Basic dTpw'}),
    ({'username': 'u', 'password': ''}, {'Authorization': 'Basic dTo='}),
    ({'username': 'u'}, {}),
    ({'password': 'p'}, {}),
])
def test_credentials_go_to_headers(kwargs, expected):
    assert ConnectionInfo(server=URL, **kwargs).as_http_headers() == expected


def test_tokens_are_read_from_files_each_time(tmp_path):
    path = tmp_path / 'token'
    info = ConnectionInfo(server=URL, token_path=path, token='fallback')
    assert info.as_http_headers() == {'Authorization': 'Bearer fallback'}
    path.write_text('one\n')
    assert info.as_http_headers() == {'Authorization': 'Bearer one'}
    path.write_text('two')
    assert info.as_http_headers() == {'Authorization': 'Bearer two'}


@pytest.mark.parametrize('kwargs', [{}, {'username': 'u'}, {'password': 'p'}, {'token': 'x'}])
def test_there_is_no_basic_auth_without_both_parts_of_it(kwargs):
    assert ConnectionInfo(server=URL, **kwargs).as_aiohttp_basic_auth() is None


def test_basic_auth_is_for_aiohttp():
    info = ConnectionInfo(server=URL, username='u', password='p')
    assert info.as_aiohttp_basic_auth().encode() == 'Basic dTpw'


# TLS.


def test_servers_are_verified_by_default():
    context = ConnectionInfo(server=URL).as_ssl_context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_insecure_servers_are_not_verified():
    context = ConnectionInfo(server=URL, insecure=True).as_ssl_context()
    assert context.verify_mode == ssl.CERT_NONE
    assert not context.check_hostname


def test_certificates_are_given_by_paths(pems):
    crt, key = pems
    info = ConnectionInfo(server=URL, ca_path=crt, certificate_path=str(crt), private_key_path=key)
    assert len(info.as_ssl_context().get_ca_certs()) == 1


def test_homes_are_expanded_in_paths(pems, monkeypatch):
    crt, key = pems
    monkeypatch.setenv('HOME', str(crt.parent))
    ConnectionInfo(
        server=URL, ca_path='~/tls.crt', certificate_path=b'~/tls.crt',
        private_key_path='~/tls.key').as_ssl_context()


@pytest.mark.parametrize('encode', [
    pytest.param(lambda raw: raw, id='bytes'),
    pytest.param(lambda raw: raw.decode(), id='str'),
    pytest.param(lambda raw: base64.b64encode(raw), id='base64-bytes'),
    pytest.param(lambda raw: base64.b64encode(raw).decode(), id='base64-str'),
    pytest.param(lambda raw: base64.encodebytes(raw), id='base64-lines'),
])
def test_certificates_are_given_by_data(pems, encode):
    crt, key = (encode(path.read_bytes()) for path in pems)
    info = ConnectionInfo(server=URL, ca_data=crt, certificate_data=crt, private_key_data=key)
    assert len(info.as_ssl_context().get_ca_certs()) == 1


def test_encrypted_keys_are_refused_without_a_question(pems, tmp_path):
    crt, key = pems
    encrypted = tmp_path / 'encrypted.key'
    subprocess.run(['openssl', 'pkey', '-in', key, '-aes256', '-passout', 'pass:s3cret',
                    '-out', encrypted], check=True, capture_output=True)
    with pytest.raises(LoginError, match='The private key is encrypted. Decrypt it: '):
        ConnectionInfo(
            server=URL, certificate_path=crt, private_key_path=encrypted).as_ssl_context()


def test_the_key_can_be_in_the_file_of_the_certificate(pems, tmp_path):
    both = b''.join(path.read_bytes() for path in pems)
    (tmp_path / 'both.pem').write_bytes(both)
    ConnectionInfo(server=URL, certificate_path=tmp_path / 'both.pem').as_ssl_context()
    ConnectionInfo(server=URL, certificate_data=both).as_ssl_context()


def test_a_path_of_one_and_data_of_the_other_are_possible(pems):
    crt, key = pems
    ConnectionInfo(
        server=URL, certificate_path=crt, private_key_data=key.read_bytes()).as_ssl_context()


def test_no_files_are_left(pems, tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    crt, key = (path.read_bytes() for path in pems)
    ConnectionInfo(server=URL, certificate_data=crt, private_key_data=key).as_ssl_context()
    with pytest.raises(LoginError):
        ConnectionInfo(server=URL, certificate_data=crt, private_key_data=crt).as_ssl_context()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize('kwargs', [
    {'ca_path': '/nowhere/ca.crt'},
    {'certificate_path': '/nowhere/tls.crt'},
    {'ca_data': 's3cret'},
    {'ca_data': base64.b64encode(b's3cret')},
    {'certificate_data': 's3cret'},
    {'ca_data': '-----BEGIN CERTIFICATE-----\ns3cret\n-----END CERTIFICATE-----\n'},
    {'certificate_data': '-----BEGIN CERTIFICATE-----\ns3cret\n-----END CERTIFICATE-----\n'},
])
def test_unusable_certificates_are_login_errors_without_secrets(kwargs):
    with pytest.raises(LoginError) as caught:
        ConnectionInfo(server=URL, **kwargs).as_ssl_context()
    assert 's3cret' not in str(caught.value)


def test_absent_files_are_named():
    with pytest.raises(LoginError, match='/nowhere/tls.crt|absent'):
        ConnectionInfo(server=URL, certificate_path='/nowhere/tls.crt').as_ssl_context()


# Sessions.


async def test_sessions_have_no_credentials_of_their_own():
    async with aiohttp.ClientSession() as session:
        info = AiohttpSession(server=URL, aiohttp_session=session, priority=3)
        assert info.aiohttp_session is session
        assert info.priority == 3
        assert hash(info)


@pytest.mark.parametrize('url, expected', [
    ('https://host', 'https://host'),
    ('https://host:1/path?x=y', 'https://host:1/path?x=y'),
    ('https://u:p@host:1/path', 'https://host:1/path'),
    ('https://u@p@host', 'https://host'),
])
def test_urls_are_stripped_of_secrets(url, expected):
    assert credentials.strip_userinfo(url) == expected


@pytest.mark.parametrize('url, expected', [
    ('https://host', 'https://host'),
    ('HTTPS://Host:6443/', 'https://host:6443'),
    ('Http://host/a/B//', 'http://host/a/B'),
    ('https://User:Pass@[2001:DB8::1]:1', 'https://User:Pass@[2001:db8::1]:1'),
    ('https://host:', 'https://host'), (' https://host/ \n', 'https://host'),
    ('https://host:065535', 'https://host:65535'),
])
def test_urls_are_normalised(url, expected):
    assert parse_url(url, 'server').geturl() == expected


@pytest.mark.parametrize('url', [
    '', 'host', 'host:6443', '//host', 'ftp://host', 'unix:///var/run', 'socks5://host', 'https://',
    'https://:443', 'https://host:port', 'https://host:99999', 'https://host:-1', 'https://host:0',
    'https://host:1_0', 'https://host:+5', 'https://[::1', 'https://host?x=y', 'https://host#x',
    'https://ho st', 'https://host\\x', 'httpss://host', None, 5, b'https://host', ['https://host'],
])
def test_other_urls_are_refused(url):
    with pytest.raises(LoginError, match='The URL of the server'):
        parse_url(url, 'server')


@pytest.mark.parametrize('url', [
    'ftp://user:s3cret@host', 'user:s3cret@host', 'https://user:s3cret@[::1', 's3cret@host:x:y',
    'https://user:s3cret@host:port',
])
def test_refused_urls_are_shown_without_passwords(url):
    with pytest.raises(LoginError) as e:
        parse_url(url, 'server')
    assert 'host' in str(e.value) or '::1' in str(e.value)
    assert 's3cret' not in str(e.value)
    assert 's3cret' not in repr(ConnectionInfo(server=url))


@pytest.mark.parametrize('value', ['false', 'true', '', 0, 1, []])
def test_insecure_is_a_boolean(value):
    with pytest.raises(TypeError, match='insecure= must be True, False, or None'):
        ConnectionInfo(server=URL, insecure=value)


@pytest.mark.parametrize(('field', 'value', 'expected'), [
    ('expiration', '2030-01-01T00:00:00Z', "a datetime, or None, not of the type 'str'"),
    ('priority', 'high', "a number, not of the type 'str'"),
    ('priority', None, "a number, not of the type 'NoneType'"),
    ('token', b's3cret', "a string, or None, not of the type 'bytes'"),
    ('username', 1, "a string, or None"),
    ('proxy_url', 3128, "a string, or None"),
    ('ca_data', ['s3cret'], "a string, bytes, or None"),
    ('token_path', 1, "a path, or None"),
])
def test_values_of_wrong_types_are_refused_by_their_names(field, value, expected):
    with pytest.raises(TypeError, match=f'^{field}= must be {expected}') as e:
        ConnectionInfo(server=URL, **{field: value})
    assert 's3cret' not in str(e.value)


def test_sessions_are_refused_with_values_of_wrong_types():
    with pytest.raises(TypeError, match='expiration= must be a datetime'):
        AiohttpSession(server=URL, aiohttp_session=None, expiration='2030-01-01T00:00:00Z')


@pytest.mark.parametrize('kwargs', [
    {'token': 's3cret-\u20ac'}, {'token': 's3cret-\xe9'}, {'token': 's3cret\r\nX: y'},
    {'token': 's3cret\0'}, {'token': 'ok', 'scheme': 's3cret-\u20ac'}, {'scheme': 's3cret\u20ac'},
])
def test_tokens_that_cannot_be_in_headers_are_refused_without_showing_them(kwargs):
    with pytest.raises(LoginError, match='Get another token') as e:
        ConnectionInfo(server=URL, **kwargs).as_http_headers()
    assert 's3cret' not in str(e.value)
    assert '\u20ac' not in str(e.value)


@pytest.mark.parametrize('kwargs', [
    {'username': '\ud800', 'password': 's3cret'}, {'username': 'x', 'password': 's3cret\ud800'},
])
def test_passwords_that_cannot_be_encoded_are_refused_without_showing_them(kwargs):
    with pytest.raises(LoginError, match='cannot be encoded') as e:
        ConnectionInfo(server=URL, **kwargs).as_http_headers()
    assert 's3cret' not in str(e.value)


def test_files_of_tokens_that_cannot_be_in_headers_are_refused(tmp_path):
    path = tmp_path / 'token'
    path.write_text('s3cret-\u20ac', encoding='utf-8')
    with pytest.raises(LoginError, match='Get another token'):
        ConnectionInfo(server=URL, token_path=path, token='fallback').as_http_headers()


def test_authorities_without_a_key_usage_are_trusted(tmp_path):
    """Those of many clusters have none. Python refuses them by default since 3.13."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
             for name in ('authority', 'server')]
    now = datetime.datetime.now(datetime.UTC)
    authority, server = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(names[0]).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName('x.test')]), critical=False)
        .sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        for name, key, is_ca in zip(names, keys, (True, False), strict=True))
    (tmp_path / 'server.pem').write_bytes(server + keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / 'server.pem')
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = credentials.make_client_context(cadata=authority.decode()).wrap_bio(
        downwards, upwards, server_hostname='x.test')
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        serving.wrap_bio(upwards, downwards, server_side=True).do_handshake()
    client.do_handshake()
    assert client.getpeercert()['subject'] == ((('commonName', 'server'),),)
