"""Errors in one line for files that cannot be read, and decoding of text files."""

from __future__ import annotations

import codecs
import errno
from collections.abc import Iterator
from contextlib import contextmanager

from stages.errors import SourceError

UNREADABLE = {
    errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO,
}  # fmt: skip
"""What is wrong with a file that is read, not with the disk that is written."""
CONTROLS = frozenset(map(chr, range(32))) - set("\t\n\v\f\r\x1b") | {"\x7f"}
MOST_CONTROLS = 0.01
"""Largest share of control characters in a text; random bytes have a tenth."""


@contextmanager
def explain_unreadable(place: str) -> Iterator[None]:
    """Turn an OSError of an unreadable file into a SourceError that names the file and `place`, a parameter."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise SourceError(
            f"{place}: {error.filename} cannot be read ({error.strerror}): check the path, its links and permissions"
        ) from error


def decode_text(data: bytes, name: str, place: str) -> str:
    """Text of the bytes: UTF-8 (a byte order mark is dropped), else Latin-1, which decodes any bytes.

    name: the file, for messages. Raises SourceError for UTF-16 and for bytes that are mostly no text.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SourceError(f"{place}: {name} is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    controls = sum(map(text.count, CONTROLS))
    if controls > MOST_CONTROLS * len(text):
        raise SourceError(
            f"{place}: {name} is no text ({controls / len(text):.0%} of it are control characters): expected a text "
            "file in UTF-8"
        )
    return text
