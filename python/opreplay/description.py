"""What programs without opreplay's Python need to know: a planned call in, its description out."""

from __future__ import annotations

from dataclasses import dataclass

from opreplay import _C
from opreplay.attempt import Attempt
from opreplay.environment import default_device
from opreplay.inputs import DescribedInputs, default_memory_budget, describe_inputs
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall
from opreplay.resolve import Resolver
from opreplay.resolve.call import ResolvedCall
from opreplay.trace.call import Skipped

__all__ = ["DescribedCall", "Describer"]


@dataclass(frozen=True, slots=True)
class DescribedCall:
    """A call and how its arguments get their values, on any device."""

    resolved: ResolvedCall
    """The operator and its typed arguments."""
    inputs: DescribedInputs
    """What the arguments hold."""
    mode: str
    """How autograd sees the call: "inference", "no_grad" or "grad"."""


class Describer:
    """Describes planned calls with one set of options.

    Recipes work on the CPU; the description is for every device, and for processes in which other
    libraries are loaded than here.
    """

    def __init__(self, options: ReplayOptions) -> None:
        """Reads the dispatcher.

        Args:
            options: Imports, seed, recipe parameters, memory budget, whether to record autograd.

        Raises:
            ImportError: A module of `options.imports` cannot be imported.
            ValueError: An option is malformed.
        """
        self._options = options
        self._anywhere = Resolver(imports=options.imports, device=None)
        self._attempt = Attempt(options, device="cpu", resolver=self._anywhere)
        self._here = Resolver(imports=options.imports, device=options.device or default_device())

    def __call__(self, call: PlannedCall) -> DescribedCall | str:
        """Describes a call; returns a sentence where there is nothing that another program runs."""
        options = self._options
        found = self._attempt.resolve(call)
        if isinstance(found, Skipped):
            return found.detail
        if found.schema is None:
            return f"{found.resolved_op} is a Python function without a schema; C++ cannot call it"
        inputs = describe_inputs(
            found,
            seed=options.seed,
            memory_budget=options.memory_budget or default_memory_budget("cpu"),
            parameters=options.recipe_parameters,
        )
        if isinstance(inputs, Skipped):
            return inputs.detail
        checked = self._here.check(found)
        at_autograd = isinstance(checked, ResolvedCall) and checked.needs_autograd
        mode = "no_grad" if at_autograd else "grad" if options.timing.grad else "inference"
        return DescribedCall(found, inputs, mode)

    def parameters(self, call: DescribedCall) -> list[_C.Parameter]:
        """Returns the parameters of a call's schema.

        Raises:
            LookupError: No library here registers the operator.
        """
        return self._here.operator(call.resolved).parameters

    def modules_of(self, op: str) -> tuple[str, ...]:
        """Names of the modules that were imported because they register an operator's namespace."""
        return self._here.modules_of(op)
