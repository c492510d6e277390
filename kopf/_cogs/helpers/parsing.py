"""
Parsing of HTTP/1.1 by llhttp (``httptools``, in its strict mode), within limits.

The other side is not trusted. A message takes no more memory than its `Limits`. Ambiguous messages
(e.g. with two lengths) are refused: different parsers could understand them differently, which
enables the smuggling of requests (RFC 9112, section 11.2).

One reader is for one connection. It reads one message after another, until the first error.
"""
import http
import zlib
from typing import NamedTuple

import httptools

Fields = list[tuple[str, str]]
"""The headers in their order: the original names, and the values without surrounding spaces."""

RawFields = list[tuple[bytes, bytes]]
"""The same as they came: they are decoded only where they are needed."""


class Limits(NamedTuple):
    """
    The limits of a message: the sizes of the head and body in bytes, the number of header fields.
    """
    head: int
    fields: int
    body: int


class MessageError(Exception):
    """The message is refused. ``status`` is the HTTP status that a client would get for it."""

    def __init__(self, status: int, reason: str = '') -> None:
        super().__init__(reason or http.HTTPStatus(status).phrase)
        self.status = status


class Response(NamedTuple):
    status: int
    raw_fields: RawFields
    body: bytes
    is_repeated: bool = False
    """Whether the request was sent before, over a connection that was closed without a response."""

    @property
    def fields(self) -> Fields:
        return _decode(self.raw_fields)

    def get_headers(self, name: str) -> list[str]:
        """Get all values of a header; its name is case-insensitive."""
        wanted = name.lower().encode()
        found = [field for field in self.raw_fields if field[0].lower() == wanted]
        return [value for _, value in _decode(found)] if found else []


_MEANINGFUL = frozenset({b'content-encoding', b'content-length', b'transfer-encoding'})
"""The headers that are interpreted here."""


class _Reader:
    """The common part of all readers: the callbacks of llhttp (``on_…``), and the limits."""

    _parser: httptools.HttpResponseParser

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.is_begun = False
        """Whether a message has begun and has not ended."""
        self._limits = limits
        self._fields: RawFields = []
        self._body: list[bytes] = []
        self._head_size = self._body_size = 0
        self._is_head_done = False
        self._encoding: bytes | None = None
        self._length: int | None = None
        self._is_chunked = False
        self._is_advanced = False
        self._stuck = 0

    def _execute(self, data: bytes) -> None:
        self._is_advanced = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as e:
            raise e.__context__ or e from None
        except httptools.HttpParserError as e:
            raise MessageError(400, f"Not HTTP/1.1: {e}.") from None
        # llhttp calls back only for complete parts, and never for extensions of chunks. So, an
        # endless header or extension is noticed only by the number of bytes without any callbacks.
        self._stuck = 0 if self._is_advanced else self._stuck + len(data)
        if self._stuck > self._limits.head:
            raise MessageError(431)

    def on_message_begin(self) -> None:
        self._is_advanced = self.is_begun = True
        self._fields, self._body = [], []
        self._head_size = self._body_size = 0
        self._is_head_done = False

    def on_header(self, name: bytes, value: bytes | None) -> None:
        value = value or b''
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self._limits.head or len(self._fields) >= self._limits.fields:
            raise MessageError(431)
        if not self._is_head_done:  # otherwise, it is a trailer, which is not needed
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._is_advanced = self._is_head_done = True
        version = self._parser.get_http_version()
        if version not in ('1.1', '1.0'):
            raise MessageError(400, "Not HTTP/1.1.")
        if self._parser.should_upgrade():  # llhttp would not parse the rest of the connection
            raise MessageError(400, "Other protocols are not spoken.")
        encoding, coding, length = None, None, None
        for name, value in self._fields:
            key = name.lower()
            if key not in _MEANINGFUL:
                continue
            if key == b'content-length':
                if length is not None:
                    raise MessageError(400, "The length is ambiguous.")
                length = value
            elif key == b'content-encoding':
                encoding = value if encoding is None else b'%b, %b' % (encoding, value)
            elif key == b'transfer-encoding':
                coding = value if coding is None else b'%b, %b' % (coding, value)
        if coding is not None:
            if length is not None or version != '1.1':
                raise MessageError(400, "The length is ambiguous.")
            if coding.rstrip(b' \t').lower() != b'chunked':
                raise MessageError(501)
        self._encoding = encoding
        self._is_chunked = coding is not None
        self._length = None if length is None else int(length)
        if self._length is not None and self._length > self._limits.body:
            raise MessageError(413)

    def on_body(self, data: bytes) -> None:
        self._is_advanced = True
        self._body_size += len(data)
        if self._body_size > self._limits.body:
            raise MessageError(413)
        self._body.append(data)

    def on_message_complete(self) -> None:
        self._is_advanced = True
        self.is_begun = False

    def _add_to_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.head:
            raise MessageError(431)


class ResponseReader(_Reader):
    """
    Reads the responses of a server.

    The requests must not be HEAD or CONNECT: their responses cannot be parsed without knowing that.

    Bodies are decompressed while they come (gzip), so that a long one does not stop the event loop.
    """

    _parser: httptools.HttpResponseParser

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.keeps_alive = True
        """Whether the connection can be reused after the last response."""
        self._status = 0
        self._response: Response | None = None
        self._gunzip: zlib._Decompress | None = None
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> Response | None:
        """
        Parse the next bytes; return the response if it is complete with them.

        :raises MessageError: if it is not proper HTTP/1.1, or is too large, or is a second
            response.
        """
        try:
            self._execute(data)
        except _BodilessError:
            self.keeps_alive = False
        return self._take()

    def end(self) -> Response | None:
        """
        Note that the connection is closed; return the response if it is complete by that.

        A response with neither a length nor chunks ends when the connection is closed.

        :raises MessageError: if it is incomplete nevertheless: the end of the compressed data has
            not come.
        """
        self.keeps_alive = False
        if self.is_begun and self._is_head_done and self._length is None and not self._is_chunked:
            self.on_message_complete()
        return self._take()

    def _take(self) -> Response | None:
        response, self._response = self._response, None
        return response

    def on_message_begin(self) -> None:
        if self._response is not None:
            raise MessageError(400, "There is more than one response.")
        size = self._head_size if 100 <= self._status < 200 else 0
        super().on_message_begin()
        self._head_size = size
        self._status = 0

    def on_status(self, reason: bytes) -> None:
        self._add_to_head(len(reason))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._status = self._parser.get_status_code()
        if self._encoding is not None and self._encoding.rstrip(b' \t').lower() != b'gzip':
            raise MessageError(415, f"The encoding is not supported: {self._encoding!r}.")
        has_body = bool(self._length) or self._is_chunked
        if self._status < 100 or (self._status < 200 and has_body):
            raise MessageError(400, f"Not a response: {self._status}.")
        if self._status in (204, 304) and has_body:
            self._complete()
            raise _BodilessError

    def on_body(self, data: bytes) -> None:
        if self._encoding is not None:
            if self._gunzip is None:
                self._gunzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            try:  # one byte more than allowed is enough to refuse it
                data = self._gunzip.decompress(data, self._limits.body - self._body_size + 1)
            except zlib.error as e:
                raise MessageError(400, f"Not gzip: {e}.") from None
        super().on_body(data)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        gunzip = self._gunzip
        if gunzip is not None and (not gunzip.eof or gunzip.unused_data):
            raise MessageError(400, "The compressed body is incomplete.")
        if self._status >= 200:
            self.keeps_alive = self.keeps_alive and self._parser.should_keep_alive()
            self._complete()

    def _complete(self) -> None:
        self.is_begun = False
        self._response = Response(self._status, self._fields, b''.join(self._body))
        self._body, self._gunzip = [], None  # the connection can be idle for long


class ResponseStreamReader(ResponseReader):
    """
    Reads one response, of which the body is taken while it comes. The body can be of any length.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.is_complete = False
        """Whether the response has ended. The last part of its body can be left to be taken."""
        self.size = 0
        """How many bytes of the body have come and are not taken yet."""

    @property
    def head(self) -> Response | None:
        """The response without its body; None if the head has not come yet."""
        if self._is_head_done and self._status >= 200:
            return Response(self._status, self._fields, b'')
        return None

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise MessageError(400, "There is more than one response.")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._encoding is not None:
            raise MessageError(415, "A stream is compressed.")

    def on_body(self, data: bytes) -> None:
        self._is_advanced = True
        self._body.append(data)
        self.size += len(data)

    def take_body(self) -> bytes:
        """Take what has come of the body since the last time."""
        body = self._body[0] if len(self._body) == 1 else b''.join(self._body)
        self._body.clear()
        self.size = 0
        return body

    def _complete(self) -> None:
        self.is_begun = False
        self.is_complete = True


def _decode(fields: RawFields) -> Fields:
    return [
        (name.decode('latin-1'), value.decode('latin-1').rstrip(' \t')) for name, value in fields]


class _BodilessError(Exception):
    """
    The response has no body by its status (204, 304), though its headers announce one.

    llhttp would wait for the body.
    """
