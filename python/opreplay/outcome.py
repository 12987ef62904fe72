"""What became of one call in a worker: the form that travels back; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from opreplay.stat import Timing
from opreplay.trace.call import Reason

__all__ = ["Outcome", "ResultCheck"]


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """What was found of the outputs of a call, and of the arguments that it writes to."""

    finite: bool
    """True if no element is infinite or NaN."""
    repeatable: bool
    """True if a second run with equal inputs gave the same bits."""
    reference: bool | None
    """True if they equal the saved ones; None where none were asked for."""
    detail: str
    """What is wrong, one sentence; empty if nothing is."""

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.detail


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
    flops: int | None = None
    """Floating point operations of the call; None where torch has no formula."""
    kernels_replayed: tuple[tuple[str, int], ...] | None = None
    """Name and number of the kernels of one profiled call; None on the CPU."""
    kernels_us: dict[str, float] | None = None
    """Time of the kernels of one profiled call, by name [microseconds]; None on the CPU."""
    outputs: ResultCheck | None = None
    """What was found of the outputs; None where nobody looked."""
    device_broken: bool = False
    """True if the process cannot use its device any more."""
