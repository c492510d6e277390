import datetime
import ipaddress
import ssl
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

import kopf
from kopf._kits.webhooks.certificates import MissingLibraryError, has_certificate, load_pair


def build(*hostnames, **kwargs):
    return x509.load_pem_x509_certificate(
        kopf.WebhookServer.build_certificate(hostnames, **kwargs)[0])


def get_names(certificate):
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return (names.get_values_for_type(x509.DNSName), names.get_values_for_type(x509.IPAddress))


def get_common_name(certificate):
    return certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value


def test_names_and_addresses_are_told_apart_and_normalised():
    certificate = build('::1', '0:0:0:0:0:0:0:1', '127.0.0.1', 'localhost', 'ex.com', 'localhost')
    assert get_names(certificate) == (
        ['localhost', 'ex.com'],
        [ipaddress.ip_address('::1'), ipaddress.ip_address('127.0.0.1')])
    assert get_common_name(certificate) == 'localhost'


def test_addresses_that_mean_any_are_left_out():
    assert get_names(build('0.0.0.0', '::', 'x')) == (['x'], [])


def test_an_address_is_the_common_name_where_there_are_no_names():
    assert get_common_name(build('0.0.0.0', '127.0.0.1')) == '127.0.0.1'


def test_names_too_long_for_a_common_name_are_good():
    name = '.'.join(['a' * 50] * 3)
    assert get_names(build(name)) == ([name], [])


def test_international_names_are_encoded():
    assert get_names(build('bücher.example')) == (['xn--bcher-kva.example'], [])


def test_no_names_are_an_error():
    with pytest.raises(ValueError, match="needs a name"):
        build('0.0.0.0')


def test_certificates_are_valid_for_long_also_where_the_clock_is_behind():
    certificate = build('x')
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(minutes=30)
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=1000)


def test_keys_are_encrypted_if_there_is_a_password():
    _, key = kopf.WebhookServer.build_certificate(['x'], 'secret')
    serialization.load_pem_private_key(key, b'secret')
    with pytest.raises(TypeError):
        serialization.load_pem_private_key(key, None)


def test_without_the_library_it_is_said_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cryptography', None)
    with pytest.raises(MissingLibraryError, match="pip install cryptography"):
        kopf.WebhookServer.build_certificate(['x'])


def test_contexts_tell_if_they_have_a_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert not has_certificate(context)
    load_pair(context, kopf.WebhookServer.build_certificate(['x']), None)
    assert has_certificate(context)
