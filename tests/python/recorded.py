"""Builders of recorded calls: tests read like the trace rows that they stand for."""

from __future__ import annotations

from opreplay.trace.call import RecordedArgument, RecordedCall


def tensor(*dims: int, type: str = "float", strides: tuple[int, ...] | None = ()):
    """A tensor; contiguous strides unless given, None where the trace has no strides."""
    if strides == () and dims:
        steps, step = [], 1
        for size in reversed(dims):
            steps.append(step)
            step *= max(1, size)
        strides = tuple(reversed(steps))
    return RecordedArgument(type, tuple(dims), strides, "")


def scalar(value: str | None, type: str = "Scalar"):
    """A scalar; None where the trace has no values."""
    return RecordedArgument(type, (), (), value)


def scalars(value: str | None):
    """A list of scalars, for instance ``"[1, 2]"``."""
    return RecordedArgument("ScalarList", (), (), value)


def tensors(*shapes: tuple[int, ...]):
    """A list of contiguous tensors."""
    return RecordedArgument("TensorList", shapes, None, "")


def dropped():
    """What the profiler writes for None, strings, devices and everything else it drops."""
    return RecordedArgument("", (), (), "")


def call(name: str, *arguments: RecordedArgument, shapes: bool = True) -> RecordedCall:
    """A recorded call without times; `shapes=False` is one whose inputs were not recorded."""
    return RecordedCall(
        name=name,
        arguments=arguments if shapes else None,
        start_us=0.0,
        duration_us=1.0,
        self_us=1.0,
        thread="1",
        external_id=None,
        step=None,
        parent=None,
        leaf=True,
        kernels=(),
        device_us=None,
        device_self_us=None,
        in_graph=False,
    )
