"""How a run is made: choices of the user come in as keywords, checked; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opreplay.stat import TimingOptions

__all__ = ["OutputChecks", "ReplayOptions"]


@dataclass(frozen=True, slots=True)
class OutputChecks:
    """What is asked of the outputs of each call, besides being finite and equal in two runs."""

    save: str | None = None
    """Directory that they are written to."""
    reference: str | None = None
    """Directory of saved outputs that they shall equal."""
    tolerance: tuple[float, float] | None = None
    """Relative and absolute, towards the reference; None takes those of each dtype."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How calls are replayed."""

    device: str | None = None
    """Where they run; None takes the accelerator if there is one, else the CPU."""
    seed: int = 0
    """Every bit of the inputs depends on this."""
    memory_budget: int | None = None
    """Bytes that the tensors of one call may take; None means 80 % of what is free then."""
    recipe_parameters: Mapping[str, str] = field(default_factory=dict)
    """What the recipes shall choose, by the names that they declare, as text."""
    timing: TimingOptions = field(default_factory=TimingOptions)
    """How long and how exactly to measure."""
    outputs: OutputChecks | None = None
    """What is asked of the outputs; None looks at none."""
    threads: int | None = None
    """Threads that an operator may use; None leaves torch's own number."""
    imports: tuple[str, ...] = ()
    """Modules to import first: they register operators."""
    namespaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules by the namespace that they register, besides the built-in table."""
    allow_mismatch: bool = False
    """Call an operator of which no schema fits from Python, with all arguments positional."""
    strict: bool = False
    """Take every assumption for a failure."""
    stop_on_error: bool = False
    """End the run after the first row that failed."""
    sequence: bool = False
    """Time the chosen calls of a trace together, in recorded order, in one graph: one row."""
    isolation: bool = True
    """Run the calls in a worker process."""
    timeout_s: float = 60.0
    """Limit for one call, counted from when its inputs are made [seconds]."""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.memory_budget is not None and self.memory_budget < 1:
            raise ValueError(f"memory_budget must be at least 1 byte, got {self.memory_budget}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be more than 0 seconds, got {self.timeout_s}")
