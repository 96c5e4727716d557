"""JSON objects from a box, one a line, with limits on the length and on the memory that parsing takes."""

import json
import os
import re
from contextlib import suppress
from itertools import islice

NO_REPLY = "the processes ended without a reply"
LONGEST = 96 << 20
MOST_VALUES = 1 << 20  # in a line: an object takes up to thirty times the memory of its text
_VALUE = re.compile(rb'[\[{,]|"[^"]*+"?')


class Lines:
    """A reader of JSON objects, one a line, from a pipe or socket."""

    def __init__(self, fd: int, most_values: int = MOST_VALUES) -> None:
        self.fd, self._most_values, self._parts, self._length = fd, most_values, [], 0

    def fileno(self) -> int:
        return self.fd

    def poll(self) -> dict | None:
        """Return the next object if its line is complete, else None. Call it when the descriptor is readable.

        Raises EOFError at the end, ValueError for a line that is too long or is not a JSON object.
        """
        data = b""
        with suppress(OSError):  # a broken connection is an end too
            data = os.read(self.fd, 1 << 20)
        if not data:
            raise EOFError(NO_REPLY)
        line, newline, rest = data.partition(b"\n")
        self._parts.append(line)
        self._length += len(line)
        if self._length > LONGEST:
            raise ValueError("the reply is too long")
        if not newline:
            return None
        line, self._parts, self._length = b"".join(self._parts), [rest], len(rest)
        return _parsed(line, self._most_values)


def _parsed(line: bytes, most_values: int) -> dict:
    """Parse a JSON object. Raises ValueError if it is none, or has too many values; then no value is made."""
    if not line.isascii():  # json.dumps writes ASCII; other characters can take a text's memory times four
        raise ValueError("the reply is not readable")
    unescaped = line.replace(rb"\\", b"").replace(rb"\"", b"")
    if any(islice(_VALUE.finditer(unescaped), most_values, None)):
        raise ValueError("the reply is too long")
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        raise ValueError("the reply is not readable") from None
