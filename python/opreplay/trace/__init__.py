"""Reads profiler traces: a file comes in, recorded calls and their groups go out."""

from __future__ import annotations

from opreplay.trace.call import (
    REASONS,
    CallGroup,
    CallSequence,
    Reason,
    RecordedArgument,
    RecordedCall,
    RecordedTimes,
    Skipped,
    signature_of,
)
from opreplay.trace.captures import GraphJoin
from opreplay.trace.errors import TraceError
from opreplay.trace.kinds import REASON_OF_KIND, Kind, classify
from opreplay.trace.reader import Trace, read_trace
from opreplay.trace.selection import LEVELS, STEPS, Level, Selection
from opreplay.trace.steps import Phase, Step

__all__ = [
    "LEVELS",
    "REASONS",
    "REASON_OF_KIND",
    "STEPS",
    "CallGroup",
    "CallSequence",
    "GraphJoin",
    "Kind",
    "Level",
    "Phase",
    "Reason",
    "RecordedArgument",
    "RecordedCall",
    "RecordedTimes",
    "Selection",
    "Skipped",
    "Step",
    "Trace",
    "TraceError",
    "classify",
    "read_trace",
    "signature_of",
]
