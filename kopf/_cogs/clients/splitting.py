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
        super().__init__()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """
        Add a chunk, and return the completed lines, without line ends and blank lines.

        :raises LineTooLongError: if the incomplete line is longer than the limit.
        """
        first, *others = chunk.split(b'\n')
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._limit:
            raise LineTooLongError(f"A line of the stream is longer than {self._limit} bytes.")
        if not others:
            return []
        lines = [b''.join(self._parts), *others]
        last = lines.pop()
        self._parts, self._size = [last], len(last)
        return [line for line in lines if line and not line.isspace()]
