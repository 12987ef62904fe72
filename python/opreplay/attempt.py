"""One call through the rooms: a recorded or planned call comes in, its outcome goes out."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from opreplay import _C
from opreplay.flops import count_flops
from opreplay.inputs import Inputs, default_memory_budget, make_inputs
from opreplay.options import ReplayOptions
from opreplay.outcome import Outcome, ResultCheck
from opreplay.outputs import compute, judge, outputs_file
from opreplay.plan import PlannedCall, PlannedOperator, resolved
from opreplay.recipes import Recipe, find_recipe, list_recipes
from opreplay.recipes.parameters import read_parameters
from opreplay.resolve.call import ResolvedCall
from opreplay.resolve.resolver import Resolver
from opreplay.stat import Timing
from opreplay.timing import kernel_times, measure, measure_unit, profile_once
from opreplay.trace.call import CallSequence, Reason, RecordedCall, Skipped, signature_of

__all__ = ["Attempt", "PreparedCall"]

logger = logging.getLogger(__name__)

_MAX_DETAIL = 400
_UNWRITTEN = ("aten::empty", "aten::new_empty")
_DEVICE_ERROR = re.compile(r"\b(?:CUDA|HIP|XPU|MPS) error\b|device-side assert")
_OUT_OF_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
_NO_KERNEL = re.compile(r"^Could not run '\S+' with arguments from the '\w+' backend")
_DTYPE_REFUSED = re.compile(
    r"expected scalar type|not implemented for '|[Uu]nsupported (?:data ?|scalar ?)?[Tt]ype"
    r"|dtype.*not supported"
    r"|not support(?:ed)?\b.*\b(?:dtype|type|Half|BFloat16|Float8)"
)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call with its inputs, ready to be made any number of times."""

    resolved: ResolvedCall
    """The operator and its typed arguments."""
    inputs: Inputs
    """What the arguments hold."""
    call: _C.Call | Callable[[], object]
    """The boxed call; a Python function where the operator has no schema."""
    mode: str
    """How autograd sees the call: "inference", "no_grad" or "grad"."""


class Attempt:
    """Resolves, prepares and times calls with one set of options, one at a time."""

    def __init__(
        self, options: ReplayOptions, *, device: str, resolver: Resolver | None = None
    ) -> None:
        """Reads the dispatcher, unless it is given what has read it.

        Args:
            options: How calls are replayed.
            device: Where they run.
            resolver: A resolver for that device; the default is a new one.

        Raises:
            ImportError: A module of `options.imports` cannot be imported.
            ValueError: No recipe declares a parameter, or its value is malformed.
        """
        self._options = options
        self._device = device
        self._resolver = resolver or Resolver(
            imports=options.imports, allow_mismatch=options.allow_mismatch, device=device
        )
        known = [parameter for one in list_recipes() for parameter in one.parameters]
        read_parameters(known, options.recipe_parameters)

    def __call__(
        self, job: RecordedCall | PlannedCall | CallSequence, started: Callable[[], None]
    ) -> Outcome:
        """Takes a call, or several as one, as far as it goes.

        Args:
            job: The call.
            started: Called before the inputs are made.
        """
        if isinstance(job, CallSequence):
            started()
            return self._measure_sequence(job)
        try:
            found = self.resolve(job)
        except Exception as error:  # A trace is foreign input: what it trips up costs one row.
            found = _raised("resolving it", error)
        if isinstance(found, Skipped):
            return Outcome(reason=found.reason, detail=found.detail)
        known = Outcome(
            resolved_op=found.resolved_op,
            overload=found.overload,
            schema=found.schema,
            rejected=found.rejected,
            assumptions=found.assumptions,
        )
        if refused := self._refused(known.assumptions):
            return _skip(known, refused)
        started()
        try:
            prepared = self.prepare(found)
        except Exception as error:
            prepared = _raised("making its inputs", error)
        if isinstance(prepared, Skipped):
            return _skip(known, prepared)
        known = replace(
            known,
            assumptions=(*known.assumptions, *prepared.inputs.assumptions),
            recipe=prepared.inputs.recipe,
            bytes=prepared.inputs.bytes,
            flops=self._flops(prepared),
        )
        if refused := self._refused(known.assumptions):
            return _skip(known, refused)
        if self._options.outputs is not None:
            try:
                known = replace(known, outputs=self._check_outputs(job, found))
            except Exception as error:
                return self._failed(error, prepared, known)
        return self.measure(prepared, known)

    def _flops(self, prepared: PreparedCall) -> int | None:
        if prepared.resolved.schema is None:
            return None
        operator, _ = self._resolver.from_python(prepared.resolved)
        return count_flops(operator, prepared.inputs.arguments)

    def refresh(self) -> None:
        """Reads the dispatcher again, for libraries that were loaded since."""
        self._resolver.refresh()

    def resolve(self, job: RecordedCall | PlannedCall) -> ResolvedCall | Skipped:
        """Finds the operator of a call and checks that it can run here."""
        if isinstance(job, RecordedCall):
            found, batch = self._resolver.resolve(job), job.batch
        elif isinstance(job.outcome, Skipped):
            return job.outcome
        else:
            found = self._resolver.check(_with_recipe_of_plan(job.op, job.outcome))
            batch = job.batch
        return found if isinstance(found, Skipped) else replace(found, batch=batch)

    def prepare(
        self, call: ResolvedCall, *, recipe: Recipe | None = None
    ) -> PreparedCall | Skipped:
        """Makes the inputs of a call and puts it together.

        Args:
            call: The call.
            recipe: A recipe for this call alone; the default is the registered one.
        """
        budget = self._options.memory_budget or default_memory_budget(self._device)
        inputs = make_inputs(
            call,
            device=self._device,
            seed=self._options.seed,
            memory_budget=budget,
            parameters=self._options.recipe_parameters,
            recipe=recipe,
        )
        if isinstance(inputs, Skipped):
            return inputs
        if self._options.timing.grad and not call.needs_autograd:
            mode = "grad"
            _require_gradients(call, inputs)
        else:
            mode = "no_grad" if call.needs_autograd else "inference"
        return PreparedCall(call, inputs, self.with_arguments(call, inputs.arguments), mode)

    def with_arguments(
        self, call: ResolvedCall, arguments: Sequence[Any]
    ) -> _C.Call | Callable[[], object]:
        """Puts a call together with these arguments in schema order."""
        if call.schema is None:
            function = self._resolver.python_callable(call)
            return lambda: function(*arguments)
        return _C.Call(self._resolver.operator(call), arguments)

    def _refused(self, assumptions: Sequence[str]) -> Skipped | None:
        if not (self._options.strict and assumptions):
            return None
        return Skipped("failed", f"an assumption is a failure under --strict: {assumptions[0]}")

    def measure(self, prepared: PreparedCall, known: Outcome) -> Outcome:
        """Times a prepared call; what it raises is the reason of the outcome."""
        torch.manual_seed(self._options.seed)  # operators that draw numbers draw the same ones
        try:
            timing, kernels = self._time(prepared, known)
        except Exception as error:  # Operators are foreign code; what they raise fails the row.
            return self._failed(error, prepared, known)
        return replace(
            known,
            timing=timing,
            kernels_us=None if kernels is None else {n: time for n, (_, time) in kernels.items()},
            kernels_replayed=None
            if kernels is None
            else tuple((name, count) for name, (count, _) in kernels.items()),
            assumptions=(*known.assumptions, *timing.notes),
        )

    def _time(
        self, prepared: PreparedCall, known: Outcome
    ) -> tuple[Timing, dict[str, tuple[int, float]] | None]:
        """Measures a call and, on a device, names its kernels."""
        options, call = self._options.timing, prepared.call
        where = {"mode": prepared.mode, "device": self._device}
        if options.profile_once and isinstance(call, _C.Call):
            return profile_once(call, name=known.resolved_op or "opreplay", **where), None
        timing = measure(prepared.inputs, options, call=call, **where)
        if isinstance(call, _C.Call) and _C.has_device_api(self._device):
            return timing, kernel_times(call, mode=prepared.mode)
        return timing, None

    def _check_outputs(
        self, job: RecordedCall | PlannedCall, call: ResolvedCall
    ) -> ResultCheck | None:
        """Runs the call twice on inputs of its own; saves and compares what it computes.

        An operator that gives memory as it is found has no outputs to speak of.
        """
        asked = self._options.outputs
        if asked is None or call.resolved_op.startswith(_UNWRITTEN):
            return None
        first, second = (self._compute(call) for _ in range(2))
        if isinstance(job, RecordedCall):
            signature = signature_of(job.name, job.arguments)
        else:
            signature = job.signature
        recipe = find_recipe(call.resolved_op)
        reads_step = recipe is not None and recipe.reads_step
        step = call.batch.annotation if reads_step and call.batch is not None else None
        if asked.save is not None:
            saved = [tensor.cpu() for tensor in first]
            torch.save(saved, outputs_file(asked.save, signature, step))
        reference = asked.reference and outputs_file(asked.reference, signature, step)
        return judge(first, second, reference=reference or None, tolerance=asked.tolerance)

    def _compute(self, call: ResolvedCall) -> list[torch.Tensor]:
        prepared = self.prepare(call)
        if isinstance(prepared, Skipped):  # there was room a moment ago
            raise MemoryError(prepared.detail)
        return compute(
            call, prepared.inputs, prepared.call, mode=prepared.mode, seed=self._options.seed
        )

    def _failed(self, error: Exception, prepared: PreparedCall, known: Outcome) -> Outcome:
        skipped = self._classify(error, prepared)
        return replace(_skip(known, skipped), device_broken=_breaks_device(error))

    def _measure_sequence(self, sequence: CallSequence) -> Outcome:
        """Prepares calls, each with inputs of its own, and times them as one unit."""
        if not _C.has_device_api(self._device):
            return Outcome(
                reason="backend_missing",
                detail=f"a sequence is captured in one graph, and {self._device} has none",
            )
        units: list[PreparedCall] = []
        assumptions = ["no call of the sequence reads what another wrote: each has its own inputs"]
        for place, call in enumerate(sequence.calls, 1):
            where = f"call {place} of {len(sequence.calls)}, {call.name}"
            try:
                found = self.resolve(call)
                prepared = found if isinstance(found, Skipped) else self.prepare(found)
            except Exception as error:  # A trace is foreign input, and so are operators.
                prepared = _raised("making its inputs", error)
            if isinstance(prepared, Skipped):
                return Outcome(reason=prepared.reason, detail=f"{where}: {prepared.detail}")
            if not isinstance(prepared.call, _C.Call):
                return Outcome(reason="schema_mismatch", detail=f"{where}: has no schema")
            made = (*prepared.resolved.assumptions, *prepared.inputs.assumptions)
            assumptions += [f"{where}: {sentence}" for sentence in made]
            units.append(prepared)
        known = Outcome(
            resolved_op=sequence.name,
            assumptions=tuple(assumptions),
            bytes=sum(unit.inputs.bytes for unit in units),
        )
        if refused := self._refused(known.assumptions):
            return _skip(known, refused)
        modes = {unit.mode for unit in units}
        try:
            timing = measure_unit(
                [unit.call for unit in units if isinstance(unit.call, _C.Call)],
                self._options.timing,
                mode="no_grad" if "no_grad" in modes else modes.pop(),
                device=self._device,
            )
        except Exception as error:  # Operators are foreign code; what they raise fails the row.
            skipped = Skipped("failed", _sentence(error))
            return replace(_skip(known, skipped), device_broken=_breaks_device(error))
        return replace(known, timing=timing, assumptions=(*known.assumptions, *timing.notes))

    def _classify(self, error: Exception, prepared: PreparedCall) -> Skipped:
        """Tells a limit of the machine from a failure of the call."""
        sentence = _sentence(error)
        if _is_out_of_memory(error):
            return Skipped("over_memory_budget", sentence)
        if isinstance(error, NotImplementedError) and _NO_KERNEL.search(str(error)):
            return Skipped("backend_missing", f"an operator inside has no kernel: {sentence}")
        if _DTYPE_REFUSED.search(str(error)) and self._passes_on_meta(prepared):
            return Skipped(
                "backend_missing",
                f"the kernel of {self._device} refuses this combination of dtypes: {sentence}",
            )
        return Skipped("failed", sentence)

    def _passes_on_meta(self, prepared: PreparedCall) -> bool:
        """Says whether the call is valid: the meta kernel checks types and shapes only."""
        if prepared.resolved.schema is None:
            return False
        operator = self._resolver.operator(prepared.resolved)
        arguments = [_on_meta(value) for value in prepared.inputs.arguments]
        try:
            _C.Call(operator, arguments).run("no_grad")
        except Exception:  # Whatever it is, the meta kernel does not vouch for the call.
            return False
        return True


def _with_recipe_of_plan(op: str, operator: PlannedOperator) -> ResolvedCall:
    """Returns what a plan holds, with an assumption where the recipe here is another one."""
    call = resolved(op, operator)
    here = find_recipe(operator.resolved_op)
    planned = operator.recipe
    if (here and here.name) != (planned and planned.name):
        note = (
            f"the plan was written for {planned.name if planned else 'no recipe'}, here "
            f"{here.name if here else 'no recipe'} chooses the values"
        )
        return replace(call, assumptions=(*call.assumptions, note))
    return call


def _skip(known: Outcome, skipped: Skipped) -> Outcome:
    return replace(known, reason=skipped.reason, detail=skipped.detail)


def _raised(doing: str, error: Exception) -> Skipped:
    logger.debug("%s raised", doing, exc_info=True)
    reason: Reason = "over_memory_budget" if _is_out_of_memory(error) else "failed"
    return Skipped(reason, f"{doing} raised {_sentence(error)}")


def _sentence(error: BaseException) -> str:
    """The first line of an error; dispatcher errors list every back end below it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].strip()}"[:_MAX_DETAIL]


def _breaks_device(error: BaseException) -> bool:
    """Says whether the process can't use its device any more."""
    return isinstance(error, torch.AcceleratorError) or bool(_DEVICE_ERROR.search(str(error)))


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def _require_gradients(call: ResolvedCall, inputs: Inputs) -> None:
    """Has autograd record the call; a leaf that is written to may not require a gradient."""
    for argument, value in zip(call.arguments, inputs.arguments, strict=True):
        for tensor in value if isinstance(value, list) else [value]:
            if not isinstance(tensor, torch.Tensor) or argument.written:
                continue
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.requires_grad_()


def _on_meta(value: Any) -> Any:
    if isinstance(value, list):
        return [_on_meta(element) for element in value]
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value
