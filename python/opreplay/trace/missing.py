"""What a trace lacks for replay: its operator events come in, one sentence per lack goes out."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.trace.call import RecordedArgument
from opreplay.trace.events import Lanes

__all__ = ["missing_sentences"]

_RECORD = "record with torch.profiler.profile"


def missing_sentences(
    lanes: Lanes, operators: Iterable[tuple[RecordedArgument, ...] | None]
) -> tuple[str, ...]:
    """Returns what the trace doesn't record, each with the flag or torch version that does.

    Args:
        lanes: The trace's events.
        operators: The arguments of each distinct operator call.
    """
    if not len(lanes.op):
        return (
            "The trace holds no operator events, only those of other kinds; "
            f"{_RECORD}(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], "
            "record_shapes=True).",
        )
    calls = list(operators)
    if not calls:
        return (
            "The trace holds no operator call that can be replayed, only ranges, collectives and "
            f"compiled regions; {_RECORD}(record_shapes=True) while the model runs eagerly.",
        )
    known = [argument for arguments in calls if arguments is not None for argument in arguments]
    sentences = []
    if lanes.untimed:
        sentences.append(
            "The trace is an Execution Trace, which holds no times: recorded times are 0, and "
            "start times only tell the order; for times record with torch.profiler and "
            "export_chrome_trace."
        )
    if all(arguments is None for arguments in calls):
        sentences.append(
            "The trace records no types or no dims of inputs; "
            f"{_RECORD}(record_shapes=True) of torch 1.9 or newer."
        )
    if known and all(argument.strides is None for argument in known):
        sentences.append(
            "The trace records no strides, so tensors are taken as contiguous; "
            f"{_RECORD}(record_shapes=True) of torch 2.4 or newer."
        )
    if known and all(argument.value is None for argument in known):
        sentences.append(
            "The trace records no values of scalars (Concrete Inputs); "
            f"{_RECORD}(record_shapes=True) of torch 2.1 or newer."
        )
    lists = [argument for argument in known if argument.type == "TensorList"]
    if lists and all(argument.dims == () for argument in lists):
        sentences.append(
            "The trace records no dims of tensor lists; "
            f"{_RECORD}(record_shapes=True) of torch 2.2 or newer."
        )
    if len(lanes.launch) and not len(lanes.gpu):
        sentences.append(
            "The trace holds GPU launches, but no kernels; "
            f"{_RECORD}(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), and "
            "synchronise the device before the profiler stops."
        )
    return tuple(sentences)
