"""Messages over a socket whose other end may send nonsense, stop half-way or never come to an end.

A message is plain data as JSON (tuples arrive as lists), after its length in eight bytes: nothing
that arrives can run code.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LARGEST_MESSAGE = 2**26
_LENGTH = struct.Struct("!Q")
_PIECE = 2**20


class BadMessage(ValueError):  # noqa: N818  (what came, not what went wrong here)
    """What came, or was to be sent, is no message."""


class Channel:
    """One end of a connection. A deadline is a value of `time.monotonic`; None waits for ever."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: Any, deadline: float | None = None) -> None:
        """Raises TypeError or ValueError for what is no plain data, `BadMessage` above 64 MiB, and
        OSError when the other end is closed; nothing has been sent then."""
        content = json.dumps(message).encode()
        if len(content) > LARGEST_MESSAGE:
            raise BadMessage(
                f"a message of {len(content):,} bytes; at most {LARGEST_MESSAGE:,} are allowed"
            )
        self._wait_until(deadline)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, deadline: float | None = None) -> Any:
        """The next message; TimeoutError, EOFError when the other end is closed, `BadMessage`."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > LARGEST_MESSAGE:
            raise BadMessage("it sent something that is no message")
        content = self._read(length, deadline)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadMessage("it sent something that is no message") from error

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int, deadline: float | None) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._wait_until(deadline)
            piece = self._socket.recv(min(size - len(received), _PIECE))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)

    def _wait_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
