"""Whether a replay stands for the trace: both sides of a call come in, verdicts go out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["KernelCheck", "TimeCheck", "check_kernels", "check_time", "normalised"]

KernelState = Literal["MATCH", "PARTIAL", "MISMATCH", "UNKNOWN"]
TimeState = Literal["WITHIN", "OUTSIDE", "UNKNOWN"]
Kernels = tuple[tuple[str, int], ...]

BAND = 1.25
"""A recorded time is within where it lies between hot / 1.25 and cold x 1.25."""

_HASH = re.compile(
    r"(?<![0-9a-zA-Z])(?:0x)?(?=[0-9a-f]*\d)[0-9a-f]{8,}(?![0-9a-zA-Z])|\b[a-z2-7]{52}\b"
)
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}|_GLOBAL__N_+[0-9a-f_]*")
_SPECIALISED = re.compile(r"(?:_?\d+[dc]+)+(?:e\d*)?$|_\d+$")


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """The kernels that a recorded call launched, against those that a replayed one launches."""

    state: KernelState
    """MATCH: the same kernels as often; PARTIAL: some of them; MISMATCH: none; or UNKNOWN."""
    why: str
    """Why it is unknown; else empty."""
    missing: Kernels
    """Name and number of the recorded kernels that the replay does not launch."""
    extra: Kernels
    """Name and number of the replayed kernels that were not recorded."""


@dataclass(frozen=True, slots=True)
class TimeCheck:
    """The recorded time against the hot and the cold one."""

    state: TimeState
    """WITHIN hot / 1.25 and cold x 1.25, OUTSIDE of it, or UNKNOWN."""
    why: str
    """Why it is unknown; else empty."""


def normalised(kernel: str) -> str:
    """Returns the name of a kernel without what differs from build to build.

    Template arguments, parameter lists, return types, hashes, anonymous namespaces and the numbers
    that Triton and Inductor put at the end are left out.
    """
    name = _ANONYMOUS.sub("anonymous", kernel)
    name = _without_brackets(_without_brackets(name, "<", ">"), "(", ")").strip()
    name = _HASH.sub("", name.rsplit(" ", 1)[-1])
    return _SPECIALISED.sub("", name).strip("_ ") or kernel


def check_kernels(
    recorded: Iterable[tuple[str, int]], replayed: Iterable[tuple[str, int]] | None
) -> KernelCheck:
    """Compares the kernels of one call, child operators included, as multisets of names.

    Args:
        recorded: Name and number of the kernels linked to the recorded call.
        replayed: Name and number of those that a profiled replay of it launched; None where
            nothing was profiled.
    """
    before = _counted(recorded)
    if not before:
        return KernelCheck("UNKNOWN", "the trace links no kernel to the call", (), ())
    if replayed is None:
        return KernelCheck("UNKNOWN", "no replay of it was profiled on a device", (), ())
    now = _counted(replayed)
    common, missing, extra = before & now, before - now, now - before
    state: KernelState = (
        "MATCH" if not missing and not extra else "PARTIAL" if common else "MISMATCH"
    )
    return KernelCheck(state, "", tuple(missing.items()), tuple(extra.items()))


def check_time(
    recorded_us: float | None,
    hot_us: float | None,
    cold_us: float | None,
    *,
    recorded_on: tuple[str, ...],
    device_name: str | None,
) -> TimeCheck:
    """Judges a recorded device time; only one of the same kind of machine can be judged.

    Args:
        recorded_us: Median of the recorded kernel spans; None where there are none.
        hot_us: Device time of the replay, inputs in cache; None where none was taken.
        cold_us: The same with inputs out of cache; None where none was taken.
        recorded_on: Names of the accelerators that the trace tells.
        device_name: Name of the accelerator that the replay ran on; None on a CPU.
    """
    if recorded_us is None:
        return TimeCheck("UNKNOWN", "the trace links no kernel to the call")
    if device_name is None:
        return TimeCheck(
            "UNKNOWN", f"it was recorded on {_names(recorded_on)}, and replayed on a CPU"
        )
    if set(recorded_on) != {device_name}:
        return TimeCheck(
            "UNKNOWN", f"it was recorded on {_names(recorded_on)}, and replayed on {device_name}"
        )
    if hot_us is None or cold_us is None:
        return TimeCheck("UNKNOWN", "the replay has no hot and cold device time")
    within = hot_us / BAND <= recorded_us <= cold_us * BAND
    return TimeCheck("WITHIN" if within else "OUTSIDE", "")


def _names(recorded_on: tuple[str, ...]) -> str:
    return ", ".join(sorted(set(recorded_on))) or "an accelerator that the trace doesn't name"


def _counted(kernels: Iterable[tuple[str, int]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for name, count in kernels:
        counted[normalised(name)] += count
    return counted


def _without_brackets(text: str, begin: str, end: str) -> str:
    """Leaves out what stands in balanced brackets."""
    kept, depth = [], 0
    for letter in text:
        depth += letter == begin
        if depth == 0:
            kept.append(letter)
        depth -= letter == end and depth > 0
    return "".join(kept)
