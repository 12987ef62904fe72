"""The compiled part of opreplay; kept equal to the extension by a test."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, device

class Parameter:
    """One argument of an operator's schema."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str:
        """Type without alias annotations, for instance ``"Tensor"``, ``"int[]"``, ``"str?"``."""
    @property
    def kind(self) -> str:
        """Base type, optional and list taken off: Tensor, int, float, bool, Scalar, str, ..."""
    @property
    def optional(self) -> bool: ...
    @property
    def is_list(self) -> bool: ...
    @property
    def optional_elements(self) -> bool: ...
    @property
    def written(self) -> bool: ...
    @property
    def output(self) -> bool: ...
    @property
    def has_default(self) -> bool: ...
    @property
    def default(self) -> Any: ...

class Operator:
    """A resolved dispatcher handle and its schema."""

    @property
    def name(self) -> str: ...
    @property
    def overload(self) -> str: ...
    @property
    def schema(self) -> str: ...
    @property
    def parameters(self) -> list[Parameter]: ...
    def has_kernel(self, dispatch_key: str) -> bool:
        """Whether the dispatcher finds a kernel for a key, fallbacks included, as ``"CPU"``."""
    def registers(self, dispatch_key: str) -> bool:
        """Whether a kernel is registered at a key itself; aliases as ``"Autograd"`` count."""

class OperatorIndex:
    """All overloads that the dispatcher knows, by operator name."""

    def __init__(self) -> None: ...
    def overloads(self, name: str) -> list[Operator]: ...
    def refresh(self) -> None:
        """Reads the dispatcher again; to be called after a library was loaded."""
    def __len__(self) -> int: ...

class Call:
    """An operator with its boxed arguments."""

    def __init__(self, operator: Operator, arguments: Sequence[Any]) -> None: ...
    def run(self, mode: str = "inference") -> list[Any]:
        """Runs once; mode is "inference", "no_grad" or "grad". Returns the outputs."""
    def arguments(self) -> list[Any]: ...
    def copies(self, count: int, arena: Tensor | None = None) -> list[Call]:
        """Copies with their own storages, in `arena` (uint8, CPU) as far as they fit."""
    @property
    def argument_bytes(self) -> int:
        """Bytes of all distinct storages that the arguments refer to."""
    @property
    def updated_bytes(self) -> int:
        """Bytes of the storages of the arguments that the operator both reads and writes."""
    @property
    def updates_arguments(self) -> bool: ...

class Bundle:
    """The calls of a bundle file."""

    def __init__(self, path: str) -> None: ...
    def __len__(self) -> int: ...
    def prepare(self, index: int, device: device) -> Call:
        """Makes the inputs of a call as a process without Python does."""

class TimingPlan:
    """How long and how exactly to measure."""

    warmup_ns: int
    limit_ns: int
    min_samples: int
    max_samples: int
    relative_error: float
    batch_ns: int
    max_batch: int
    mode: str
    def __init__(self) -> None: ...

class Samples:
    """Times of one measurement."""

    @property
    def ns(self) -> list[float]: ...
    @property
    def batch(self) -> int: ...
    @property
    def discarded(self) -> int: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def route(self) -> Literal["loop", "graph", "stream"]: ...
    @property
    def floor_ns(self) -> float:
        """What work that does nothing takes on this route; 0 for a loop."""

class DeviceTimes:
    """What timing on a device found, for one unit of calls."""

    @property
    def host(self) -> Samples: ...
    @property
    def hot(self) -> Samples | None: ...
    @property
    def cold(self) -> Samples | None: ...
    @property
    def latency(self) -> Samples | None: ...
    @property
    def notes(self) -> list[str]: ...

class DeviceTimer:
    """Times calls on a device that has a back end; keeps streams, events, flush buffer, floors."""

    def __init__(self, device: str) -> None: ...
    def time(
        self,
        calls: Sequence[Call],
        plan: TimingPlan,
        cold: Literal["all", "weights", "off"] = "all",
    ) -> DeviceTimes:
        """Times one call, or several that run in their order as a unit."""
    @property
    def cache_bytes(self) -> int: ...

class Graph:
    """Calls captured once, to be replayed any number of times."""

    def __init__(
        self, calls: Sequence[Call], device: str, times: int = 1, mode: str = "inference"
    ) -> None: ...
    def replay(self, n: int = 1) -> None: ...
    def synchronize(self) -> None: ...
    def outputs(self) -> list[Any]:
        """Outputs of the last captured call; a replay writes them anew."""
    @property
    def calls(self) -> int: ...
    @property
    def nodes(self) -> int:
        """Kernels, copies and fills that were captured."""

def has_device_api(device: str) -> bool:
    """Whether this build can capture graphs and time calls on a type of device."""

def device_cache_bytes(device: str) -> int | None:
    """Size of the largest cache of a device; None where `has_device_api` says no."""

def time_call(call: Call, plan: TimingPlan) -> Samples: ...
def time_rotated(calls: Sequence[Call], plan: TimingPlan, evict: Tensor | None) -> Samples: ...
def time_python(fn: Callable[[], object], plan: TimingPlan) -> Samples: ...
def empty_call(arguments: int) -> Call: ...
def timer_ns() -> float: ...
def write_bundle(path: str, content: bytes) -> None:
    """Writes what torch.save made behind the header of a bundle."""

def fill_random_(tensor: Tensor, seed: int, stream: int = 0) -> None: ...
def fill_random_integers_(
    tensor: Tensor, low: int, high: int, seed: int, stream: int = 0
) -> None: ...

build_torch_version: str
RESTORE_LIMIT: int
MAX_EMPTY_ARGUMENTS: int

class KeptTensor:
    @property
    def type(self) -> str: ...
    @property
    def sizes(self) -> list[int]: ...
    @property
    def values(self) -> list[int] | None: ...

class KeptArgument:
    @property
    def thread(self) -> int: ...
    @property
    def op(self) -> str: ...
    @property
    def occurrence(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def is_list(self) -> bool: ...
    @property
    def tensors(self) -> list[KeptTensor]: ...

def start_keeping_values(max_elements: int) -> None: ...
def stop_keeping_values() -> list[KeptArgument]: ...
