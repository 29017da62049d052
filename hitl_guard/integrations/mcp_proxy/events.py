"""Server-sent events (WHATWG HTML, 9.2), read from bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_RETRY_DIGITS = 6

_END = re.compile(rb"\r\n|\n|\r")


class Events:
    """Reads one stream after another; what it remembers lets a broken one be taken up again.

    Attributes:
        last_id: The last event's id; empty where the server gave none.
        retry_ms: How long to wait before a broken stream is taken up again, or None.
        count: Events so far.
    """

    def __init__(self, most: int) -> None:
        self.last_id = ""
        self.retry_ms: int | None = None
        self.count = 0
        self._most = most
        self.restart()

    def restart(self) -> None:
        """Begin another stream."""
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._kind = b""
        self._id = self.last_id

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield the data of each message that ends in this chunk; None, and no more, once one is too long."""
        self._rest += chunk
        at = 0
        while (found := self._line(at)) is not None:
            line, at = found
            if line:
                self._field(line)
            elif (data := self._dispatched()) is not None:
                yield data
        del self._rest[:at]
        if len(self._rest) + self._size > self._most:
            yield None

    def _line(self, at: int) -> tuple[bytes, int] | None:
        """Return the next line from a place on, and the place after it: it ends with CR LF, LF or CR."""
        end = _END.search(self._rest, at)
        if end is None or (end[0] == b"\r" and end.end() == len(self._rest)):
            return None  # nothing ends yet, or an LF may follow the CR
        return bytes(self._rest[at : end.start()]), end.end()

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._kind = value
        elif name == b"id" and value.isascii() and value.decode().isprintable():
            self._id = value.decode()
        elif name == b"retry" and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
            self.retry_ms = int(value)

    def _dispatched(self) -> bytes | None:
        """Return the data of the message that ends here, if it is one and has any."""
        data, kind = b"\n".join(self._data), self._kind
        self._data, self._size, self._kind = [], 0, b""
        self.last_id = self._id
        self.count += 1
        return data if data and kind in (b"", b"message") else None
