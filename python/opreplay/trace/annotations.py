"""The annotation around each operator: lanes come in, an annotation per operator goes out."""

from __future__ import annotations

import numpy as np

from opreplay.trace.events import Events, IdArray, Lanes, concatenate
from opreplay.trace.nesting import NOTHING, ROUNDING_US, nest, preorder

__all__ = ["enclosing_annotations", "with_profiler_steps"]


def with_profiler_steps(lanes: Lanes) -> Events:
    """Returns the annotations, and the profiler steps that old traces put among the operators."""
    steps = lanes.op.where(name.startswith("ProfilerStep#") for name in lanes.op.examples.names)
    joined = concatenate(lanes.annotation, lanes.op.take(np.flatnonzero(steps)))
    return joined.take(preorder(joined))


def enclosing_annotations(ops: Events, annotations: Events) -> IdArray:
    """Returns for each operator the row of its innermost enclosing annotation, or `NOTHING`.

    An annotation on the operator's own thread goes first; only without one does another thread
    count (the backward pass runs on its own thread), and then the one that started last.
    """
    tree = nest(annotations)
    end = np.maximum(ops.start, ops.end - ROUNDING_US)
    found = tree.innermost(ops.thread, ops.start, end)
    alone = np.flatnonzero(found == NOTHING)
    found[alone] = tree.innermost(None, ops.start[alone], end[alone])
    return found
