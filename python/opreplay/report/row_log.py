"""Rows on disk as they finish: rows come in, lines of JSON go out, and back after any end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from opreplay.environment import OF_THE_MOMENT, Environment
from opreplay.report.results import Report
from opreplay.report.results_file import ROWS_FORMAT, ResultsError, read_rows
from opreplay.report.row import Row, RowKey

__all__ = ["RowLog"]


class RowLog:
    """A file that holds every finished row, whatever ends the run.

    The first line tells where and how the run was made; each further line is one row. A row that
    turns out otherwise later (see `Isolated.watch`) is written again: the last line of a row holds.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        """Opens the file for this run alone.

        Args:
            path: The file.
            resume: Go on with the file of a run that was ended; the default wants a new one.

        Raises:
            ValueError: The file is there without `resume`, or another run is writing to it.
            ResultsError: The file holds something else.
            OSError: The file cannot be opened.
        """
        self.path = Path(path)
        if not resume and self.path.exists() and self.path.stat().st_size:
            raise ValueError(
                f"{path}: is there already; go on with --resume or choose another file"
            )
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._size = self._whole_lines()
            self._begun: Report | None = None
            if self._size:
                self._begun, self._options = read_rows(self.path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> RowLog:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the file, and gives up the lock."""
        os.close(self._descriptor)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that an ended run has left."""
        return () if self._begun is None else self._begun.rows

    @property
    def done(self) -> frozenset[RowKey]:
        """What needs no further run."""
        return frozenset(row.key for row in self.rows)

    def begin(
        self, environment: Environment, command: tuple[str, ...], options: Mapping[str, Any]
    ) -> None:
        """Writes where and how the run is made, or checks that it goes on as it was begun.

        Raises:
            ValueError: The file was begun on another machine, with other software or options.
            OSError: There is no room.
        """
        if self._begun is None:
            self._write(
                {
                    "format": ROWS_FORMAT,
                    "environment": environment.to_json(),
                    "command": list(command),
                    "options": dict(options),
                }
            )
            return
        self._check("environment", self._begun.environment.to_json(), environment.to_json())
        self._check("options", self._options, orjson.loads(orjson.dumps(dict(options))))

    def append(self, row: Row) -> None:
        """Adds a row; when this returns, ending the process cannot lose it.

        Raises:
            OSError: There is no room; the rows before are whole.
        """
        self._write(row.to_json())

    def _check(self, what: str, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name in begun.keys() | now.keys():
            if name not in OF_THE_MOMENT and begun.get(name) != now.get(name):
                raise ValueError(
                    f"{self.path}: was begun with {what}.{name} {begun.get(name)}, it is "
                    f"{now.get(name)} now; rows of both do not compare: choose another file"
                )

    def _write(self, fields: Mapping[str, Any]) -> None:
        line = orjson.dumps(fields) + b"\n"
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)  # half a line helps nobody
            raise ValueError(
                f"{self.path}: {error.strerror}; every row before is whole: make room and go on "
                "with --resume"
            ) from error
        self._size += len(line)

    def _lock(self) -> None:
        try:  # the kernel gives it up with the process, however that ends
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{self.path}: another run is writing to it; wait for it or choose another file"
            ) from None

    def _whole_lines(self) -> int:
        """Cuts off a line that was not finished; returns the size that is left [bytes]."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole == 0 and data and not data.startswith(b'{"format":"opreplay-'):
            raise ResultsError(f"{self.path}: holds something else than rows; choose another file")
        if whole < len(data):
            os.ftruncate(self._descriptor, whole)
        return whole
