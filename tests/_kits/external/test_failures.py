"""
What the errors of HTTP libraries mean, by what they look like.
"""
import datetime
import socket
import ssl
import urllib.error

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

import kopf
from kopf import testing
from kopf._kits.external.failures import Failure, is_of_connection, read

NOW = datetime.datetime(2026, 11, 26, tzinfo=datetime.UTC)


def make_class(module, name, *bases):
    return type(name, bases or (Exception,), {'__module__': module})


def make(module, name, *bases, **attributes):
    error = make_class(module, name, *bases)('x')
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


REQUEST_ERROR = make_class('requests.exceptions', 'RequestException', OSError)


class Response:
    def __init__(self, status_code, **headers):
        self.status_code = status_code
        self.headers = {key.replace('_', '-'): value for key, value in headers.items()}


def make_aiohttp(status, **headers):
    return aiohttp.ClientResponseError(
        None, (), status=status, headers=CIMultiDictProxy(CIMultiDict(headers)))


def make_botocore(status, code='X', **headers):
    return make('botocore.exceptions', 'ClientError', response={
        'Error': {'Code': code},
        'ResponseMetadata': {'HTTPStatusCode': status, 'HTTPHeaders': headers}})


@pytest.mark.parametrize(['error', 'expected'], [
    (make_aiohttp(429, **{'retry-after': '7'}), Failure(False, True, 7.0, 429)),
    (make_aiohttp(500), Failure(True, False, None, 500)),
    (make_aiohttp(503, **{'Retry-After': '9'}), Failure(True, False, 9.0, 503)),
    (make_aiohttp(404), Failure(False, True, None, 404)),
    (make_aiohttp(409), Failure(False, False, None, 409)),
    (make('httpx', 'HTTPStatusError', response=Response(429)), Failure(False, True, 5.0, 429)),
    (make('requests.exceptions', 'HTTPError', OSError, response=Response(
        429, Retry_After='Thu, 26 Nov 2026 00:01:00 GMT')), Failure(False, True, 60.0, 429)),
    (make_botocore(400, 'ThrottlingException'), Failure(False, True, 5.0, 400)),
    (make_botocore(503), Failure(True, False, None, 503)),
    (make('httpx', 'ConnectError'), Failure(True, True)),
    (make('httpx', 'ReadTimeout'), Failure()),
    (make('httpx', 'ReadTimeout', make('httpx', 'TransportError').__class__), Failure(True)),
    (make('requests.exceptions', 'JSONDecodeError', REQUEST_ERROR), Failure()),
    (make('requests.exceptions', 'MissingSchema', REQUEST_ERROR, ValueError), Failure()),
    (make('requests.exceptions', 'ReadTimeout', make_class(
        'requests.exceptions', 'Timeout', REQUEST_ERROR)), Failure(True)),
    (make('requests.exceptions', 'RetryError', REQUEST_ERROR), Failure(True)),
    (ConnectionRefusedError(), Failure(True, True)),
    (urllib.error.URLError(ConnectionRefusedError()), Failure(True, True)),
    (urllib.error.URLError(TimeoutError()), Failure(True)),
    (urllib.error.URLError(socket.gaierror()), Failure(True, True)),
    (urllib.error.URLError(ssl.SSLCertVerificationError()), Failure(True, True)),
    (urllib.error.URLError("unknown url type"), Failure(True)),
    (ConnectionResetError(), Failure(True)),
    (TimeoutError(), Failure(True)),
    (KeyError('x'), Failure()),
    (kopf.RetryAfter(3), Failure(False, True, 3.0)),
    (kopf.NotSent(), Failure(None, True)),
    (kopf.HandlerTimeoutError('x'), Failure(True)),
    (kopf.TemporaryError('x'), Failure()),
    (testing.APIError('x', status=403), Failure()),
    (testing.APIError('x', status=503), Failure()),
])
def test_errors(error, expected):
    assert read(error, now=NOW) == expected


@pytest.mark.parametrize(['error', 'expected'], [
    (ConnectionResetError(), True),
    (socket.gaierror(), True),
    (urllib.error.URLError(ConnectionRefusedError()), True),
    (aiohttp.ServerDisconnectedError(), True),
    (make('httpx', 'ConnectError', make('httpx', 'TransportError').__class__), True),
    (urllib.error.URLError("unknown url type"), False),
    (FileNotFoundError(), False),
    (TimeoutError(), False),
    (KeyError('reason'), False),
])
def test_errors_of_connections(error, expected):
    assert is_of_connection(error) is expected


@pytest.mark.parametrize(['text', 'delay'], [
    ('x', 5.0), ('nan', 5.0), ('-1', 0.0), ('1e9', 3600.0),
    ('Wed, 25 Nov 2026 00:00:00 GMT', 0.0)])
def test_strange_delays(text, delay):
    assert read(make_aiohttp(429, **{'Retry-After': text}), now=NOW).delay == delay


def test_a_delay_is_a_number():
    with pytest.raises(TypeError, match="delay= must be a number of seconds, not '5'"):
        kopf.RetryAfter('5')
