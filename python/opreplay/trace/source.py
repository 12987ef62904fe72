"""Bytes of a trace: a path, a pipe or standard input comes in, uncompressed pieces go out."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import BinaryIO

from opreplay.trace.errors import TraceError

try:
    from isal import isal_zlib as zlib  # the same interface, three times as fast
except ImportError:
    import zlib

__all__ = ["Progress", "read_pieces"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes read from the file so far, and the file's size (None for a pipe)."""

_CHUNK = 1 << 16
"""Bytes read at once; of gzip data they unpack to about a megabyte of trace."""

_QUEUED = 8
"""Pieces that may wait for the reader."""

_GZIP = b"\x1f\x8b"

_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89PNG", "a PNG image", "pass the .json or .json.gz file that the profiler wrote"),
    (b"\xff\xd8\xff", "a JPEG image", "pass the .json or .json.gz file that the profiler wrote"),
    (b"%PDF", "a PDF document", "pass the .json or .json.gz file that the profiler wrote"),
    (b"PK\x03\x04", "a zip archive", "unpack it and pass the trace file inside"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", "decompress it with zstd -d first"),
    (b"\xfd7zXZ", "xz data", "decompress it with xz -d first"),
    (b"BZh", "bzip2 data", "decompress it with bzip2 -d first"),
    (b"\x7fELF", "a program", "pass the .json or .json.gz file that the profiler wrote"),
    (b"SQLite format 3", "a SQLite database", "export the profile as a Chrome trace (JSON)"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file with git lfs pull"),
)
"""Beginning of a file, what it is, and the remedy."""


def read_pieces(path: str | Path, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Yields the uncompressed bytes of a trace file, which a thread of its own reads ahead.

    Args:
        path: A file, a pipe, or ``"-"`` for standard input; gzip is told by its first bytes.
        progress: Called after each chunk, from that thread.

    Raises:
        TraceError: The file cannot be opened or read, is empty, is cut off or isn't JSON.
    """
    queue: Queue[bytes | BaseException | None] = Queue(_QUEUED)
    unwanted = Event()

    def read_ahead() -> None:
        try:
            for piece in _pieces(path, progress):
                queue.put(piece)
                if unwanted.is_set():
                    return
        except BaseException as error:
            queue.put(error)
        else:
            queue.put(None)

    # Not joined: it may wait for a pipe that nobody writes to any more.
    Thread(target=read_ahead, name="opreplay-read", daemon=True).start()
    try:
        while (piece := queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        unwanted.set()
        while not queue.empty():
            queue.get_nowait()


def _pieces(path: str | Path, progress: Progress | None) -> Iterator[bytes]:
    with _opened(path) as stream:
        chunks = _counted(stream, _size(stream), progress)
        try:
            head = next(chunks, b"")
            if not head:
                raise TraceError(
                    f"{path}: byte 0: the file is empty; record the trace again, and let the "
                    "profiler finish writing before you read it"
                )
            if head.startswith(_GZIP):
                yield from _inflated(path, head, chunks)
                return
            _refuse_foreign(path, head)
            yield head
            yield from chunks
        except OSError as error:
            raise _unreadable(path, error) from error


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        # A file is closed by the caller's `with`; only opening it may fail here.
        stream = Path(path).open("rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise _unreadable(path, error) from error
    with stream:
        yield stream


def _unreadable(path: str | Path, error: OSError) -> TraceError:
    return TraceError(
        f"{path}: byte 0: cannot read the file ({error.strerror or error}); check the path and "
        "its permissions"
    )


def _size(stream: BinaryIO) -> int | None:
    try:
        status = Path(f"/dev/fd/{stream.fileno()}").stat()
    except (OSError, ValueError):
        return None  # not backed by a descriptor: the size is unknown, as for a pipe
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _counted(stream: BinaryIO, size: int | None, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    while chunk := stream.read(_CHUNK):
        done += len(chunk)
        if progress is not None:
            progress(done, size)
        yield chunk


def _inflated(path: str | Path, head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the uncompressed bytes of a gzip stream of one or more members."""
    inflater = zlib.decompressobj(wbits=31)
    consumed, data = 0, head
    while data:
        try:
            yield inflater.decompress(data)
        except zlib.error as error:
            raise TraceError(
                f"{path}: byte {consumed}: the gzip data is damaged ({error}); copy or record "
                "the trace again"
            ) from error
        rest = inflater.unused_data
        consumed += len(data) - len(rest)
        if inflater.eof and (rest or (rest := next(chunks, b""))):
            if not rest.strip(b"\0"):
                data = next(chunks, b"")  # padding after the last member, as gzip allows
                continue
            inflater = zlib.decompressobj(wbits=31)
            data = rest
        else:
            data = b"" if inflater.eof else next(chunks, b"")
    if not inflater.eof:
        raise TraceError(
            f"{path}: byte {consumed}: the gzip data ends before its end mark (truncated file); "
            "copy or record the trace again"
        )


def _refuse_foreign(path: str | Path, head: bytes) -> None:
    for magic, what, remedy in _FOREIGN:
        if head.startswith(magic):
            raise TraceError(f"{path}: byte 0: found {what}, not a profiler trace; {remedy}")
