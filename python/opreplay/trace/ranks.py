"""Traces of several ranks as one: the lanes of each come in, lanes of all of them go out."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from opreplay.trace.errors import TraceError
from opreplay.trace.events import NO_ID, Events, IdArray, Lanes, concatenate

__all__ = ["merge_ranks", "rank_files"]

_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_ENDINGS = (".json", ".json.gz")


def rank_files(directory: Path) -> dict[str, Path]:
    """Returns the trace files of a directory by rank: its number, or else the file's name.

    Raises:
        TraceError: There is no trace file, or two are of the same rank.
    """
    files: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        if not path.name.endswith(_ENDINGS):
            continue
        found = _RANK.search(path.name)
        rank = found[1] if found else path.name
        if rank in files:
            raise TraceError(
                f"{directory}: {files[rank].name} and {path.name} are both of rank {rank}; "
                "keep one file of each rank in the directory"
            )
        files[rank] = path
    if not files:
        raise TraceError(
            f"{directory}: the directory holds no trace; pass a file, or a directory with a "
            ".json or .json.gz file of each rank"
        )
    return dict(sorted(files.items(), key=lambda item: (not item[0].isdigit(), len(item[0]), item)))


def merge_ranks(lanes: Mapping[str, Lanes]) -> Lanes:
    """Joins the lanes of ranks, which are put one after another in time.

    So no operator gets another rank's annotation or kernel, whatever the ranks' clocks say.

    Raises:
        TraceError: Some are Execution Traces, and some are not.
    """
    untimed = [rank for rank, one in lanes.items() if one.untimed]
    if 0 < len(untimed) < len(lanes):
        raise TraceError(
            f"the trace of rank {untimed[0]} is an Execution Trace, those of other ranks are not; "
            "keep one kind in the directory"
        )
    return functools.reduce(_append, (_labelled(rank, one) for rank, one in lanes.items()))


def _labelled(rank: str, lanes: Lanes) -> Lanes:
    return replace(lanes, rank=tuple(rank for _ in lanes.threads))


def _append(first: Lanes, second: Lanes) -> Lanes:
    end = max((_latest(events) for events in _events(first)), default=0.0)
    begin = min((_earliest(events) for events in _events(second)), default=0.0)
    ids = np.unique(
        np.concatenate([i for e in _events(second) for i in (e.external_id, e.correlation)])
    )
    first_id = 1 + max(
        (int(i.max(initial=NO_ID)) for e in _events(first) for i in (e.external_id, e.correlation)),
        default=NO_ID,
    )

    def moved(events: Events) -> Events:
        return replace(
            events,
            start=events.start - begin + end,
            thread=events.thread + len(first.threads),
            external_id=_renumbered(events.external_id, ids, first_id),
            correlation=_renumbered(events.correlation, ids, first_id),
        )

    return Lanes(
        op=concatenate(first.op, moved(second.op)),
        launch=concatenate(first.launch, moved(second.launch)),
        gpu=concatenate(first.gpu, moved(second.gpu)),
        annotation=concatenate(first.annotation, moved(second.annotation)),
        threads=first.threads + second.threads,
        rank=first.rank + second.rank,
        devices=first.devices + second.devices,
        untimed=first.untimed,
    )


def _events(lanes: Lanes) -> tuple[Events, ...]:
    every = (lanes.op, lanes.launch, lanes.gpu, lanes.annotation)
    return tuple(events for events in every if len(events))


def _earliest(events: Events) -> float:
    return float(events.start.min())


def _latest(events: Events) -> float:
    return float(events.end.max())


def _renumbered(ids: IdArray, known: IdArray, first: int) -> IdArray:
    """Gives ids new numbers from `first` on, in the order of `known`."""
    numbers: IdArray = np.where(ids == NO_ID, NO_ID, first + np.searchsorted(known, ids))
    return numbers
