"""
Splitting a stream into lines: the bytes come in chunks of any size.
"""
MAX_LINE = 512 * 1024 * 1024


class LineTooLongError(Exception):
    """A line is longer than the limit. Kubernetes never sends such lines."""


class LineSplitter:
    """
    Splits chunks into lines. The incomplete last line is kept until the next chunk.

    The time is linear in the length of a line, in whatever number of chunks the line comes.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """
        Add a chunk, and return the completed lines, without line ends and blank lines.

        :raises LineTooLongError: if the incomplete line is longer than the limit.
        """
        lines = chunk.split(b'\n')
        self._parts.append(lines[0])
        self._size += len(lines[0])
        if self._size > self._limit:
            raise LineTooLongError(f"A line of the stream is longer than {self._limit} bytes.")
        if len(lines) == 1:
            return []
        lines[0] = b''.join(self._parts)
        last = lines.pop()
        self._parts, self._size = [last] if last else [], len(last)
        return [*filter(bytes.strip, lines)]
