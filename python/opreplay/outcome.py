"""What became of one call in a worker: the form that travels back; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from opreplay.stat import Timing
from opreplay.trace.call import Reason

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call after it went through the rooms, as far as it came."""

    reason: Reason | None = None
    """Why there is no timing; None if there is one."""
    detail: str = ""
    """One sentence on the reason."""
    timing: Timing | None = None
    """What was measured."""
    resolved_op: str | None = None
    """Operator that runs; None where none was found."""
    overload: str = ""
    """Its overload."""
    schema: str | None = None
    """Its schema; None for a plain callable or where none was found."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Other schemas of the name, each with the reason why it does not fit."""
    assumptions: tuple[str, ...] = ()
    """Each guess that was made, one sentence each."""
    recipe: str | None = None
    """What chose the values of data-dependent arguments."""
    bytes: int | None = None
    """Bytes of all storages of the inputs."""
    kernels_us: dict[str, float] | None = None
    """Time of the kernels of one profiled call, by name [microseconds]; None on the CPU."""
    device_broken: bool = False
    """True if the process cannot use its device any more."""
