"""Cuts records out of JSON documents, nests intervals and fills objects; loads no torch."""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]
_T = TypeVar("_T")

def set_each(descriptor: object, objects: list[Any], values: Iterable[object]) -> None: ...
def nest(
    thread: _Ids, start: _Floats, end: _Floats, *, tolerance: float
) -> tuple[_Ids, _Ids, _Ids]: ...
def innermost(
    intervals: tuple[_Ids, _Floats, _Floats],
    parent: _Ids,
    thread: _Ids | None,
    start: _Floats,
    end: _Floats,
) -> _Ids: ...

class Scanner:
    def __init__(
        self,
        *,
        records_key: str,
        label_key: str,
        phase: tuple[str, str],
        lane_key: str,
        lanes: list[tuple[str, int]],
        time_keys: tuple[str, str],
        thread_keys: tuple[str, str],
        fields_key: str,
        id_keys: list[tuple[str, int]],
        name_key: str,
        list_keys: list[str],
        signature_keys: list[str],
    ) -> None: ...
    def feed(self, piece: bytes) -> None: ...
    def finish(
        self,
    ) -> tuple[Literal["complete", "truncated", "damaged", "foreign"], int, bytes]: ...
    def cells(self) -> tuple[bytes, int]: ...
    def examples(
        self, lane: int, cells: list[_T | None]
    ) -> tuple[list[str], list[tuple[_T, ...] | None], list[tuple[int, int, bytes]]]: ...
    def table(self, lane: int) -> tuple[_Floats, _Floats, _Ids, _Ids, list[_Ids]]: ...
    @property
    def threads(self) -> list[bytes]: ...
    @property
    def keys(self) -> list[bytes]: ...
    @property
    def label(self) -> bytes: ...
    @property
    def has_records(self) -> bool: ...
    @property
    def record_count(self) -> int: ...
