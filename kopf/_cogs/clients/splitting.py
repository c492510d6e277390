"""
Lines of a stream: bytes come in chunks of any size, and whole lines go out.
"""
MAX_LINE = 512 * 1024 * 1024


class LineTooLongError(Exception):
    """A line does not end. Nothing that Kubernetes sends is that long."""


class LineSplitter:
    """
    Splits chunks into lines, without their ends. The last unfinished line is kept for later.

    A line may come in any number of chunks: its cost is linear in its length.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        super().__init__()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the chunk, and return the lines that are complete now; blank ones are left out."""
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
