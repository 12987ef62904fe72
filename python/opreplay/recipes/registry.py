"""The registry of recipes: an operator name comes in, the recipe for its tensors goes out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Literal

from opreplay.recipes.call import RecipeCall
from opreplay.recipes.parameters import Parameter
from opreplay.recipes.symbols import Symbols

__all__ = [
    "ENTRY_POINT_GROUP",
    "Origin",
    "Pools",
    "Recipe",
    "RecipeFunction",
    "RecipeRegistry",
    "find_recipe",
    "list_recipes",
    "recipe",
    "register_recipe",
    "remove_recipe",
]

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "opreplay.recipes"
"""Packages name modules with recipes of their own under this group of entry points."""

Origin = Literal["built-in", "plug-in", "user"]

_RANK: dict[Origin, int] = {"built-in": 0, "plug-in": 1, "user": 2}

RecipeFunction = Callable[[RecipeCall], str | None]
"""Fills tensors of a call in place; returns one line on what it chose, None if there is nothing."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Caches of blocks: a call touches those that its tables name, so there may be fewer."""

    caches: tuple[str, ...]
    """Arguments that are a cache; dim 0 runs over its blocks."""
    tables: tuple[str, ...]
    """Arguments that name blocks: without one of them nothing is a cache."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One function and the operators whose tensors it fills."""

    function: RecipeFunction
    """Called with the tensors of each new materialisation."""
    ops: tuple[str, ...]
    """Exact operator names, ``"namespace::name"``, without overload."""
    cpu: tuple[str, ...]
    """Arguments that the operator wants on the CPU whatever the device of the call."""
    origin: Origin
    """Who registered it: user recipes beat plug-ins, plug-ins beat built-in ones."""
    parameters: tuple[Parameter, ...] = ()
    """What the user may set."""
    reads_step: bool = False
    """True if the values depend on the step of the call: other steps are rows of their own."""
    produced: Mapping[str, str] = field(default_factory=dict)
    """Operators that make an argument, by the argument's name."""
    pools: Pools | None = None
    """What may hold fewer blocks than recorded where memory is short."""
    symbols: Symbols | None = None
    """The sizes by which its calls can grow in a sweep."""

    def __post_init__(self) -> None:
        """Refuses names that cannot be an operator's."""
        if not self.ops:
            raise ValueError("a recipe needs the name of at least one operator")
        for op in self.ops:
            namespace, separator, name = op.partition("::")
            if not (namespace and separator and name.isidentifier()):
                raise ValueError(f"{op!r} is no exact operator name like 'aten::embedding'")

    @property
    def name(self) -> str:
        """Module and name of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"


class RecipeRegistry:
    """Recipes by exact operator name; the best origin wins, then the latest registration."""

    def __init__(self) -> None:
        """Makes an empty registry."""
        self._recipes: list[Recipe] = []
        self._by_op: dict[str, Recipe] = {}

    def add(self, recipe: Recipe) -> None:
        """Registers a recipe; it wins over older ones of its own and of lower origins."""
        self._recipes.append(recipe)
        self._index(recipe)

    def remove(self, function: RecipeFunction) -> None:
        """Takes back every registration of a function.

        Raises:
            KeyError: The function has no registration.
        """
        kept = [recipe for recipe in self._recipes if recipe.function is not function]
        if len(kept) == len(self._recipes):
            raise KeyError(f"{function!r} is not a registered recipe")
        self._recipes = kept
        self._by_op = {}
        for recipe in kept:
            self._index(recipe)

    def find(self, op: str) -> Recipe | None:
        """Returns the recipe that fills for an operator; None if it needs none."""
        return self._by_op.get(op)

    def __iter__(self) -> Iterator[Recipe]:
        """Yields all recipes in the order of their registration, beaten ones included."""
        return iter(tuple(self._recipes))

    def _index(self, recipe: Recipe) -> None:
        for op in recipe.ops:
            best = self._by_op.get(op)
            if best is None or _RANK[recipe.origin] >= _RANK[best.origin]:
                self._by_op[op] = recipe


_registry = RecipeRegistry()
_origin: ContextVar[Origin] = ContextVar("_origin", default="user")
_plugins_loaded = False


@contextmanager
def registering_as(origin: Origin) -> Iterator[None]:
    """Inside, `recipe` registers for an origin other than the user."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def recipe(
    *ops: str,
    cpu: tuple[str, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    reads_step: bool = False,
    produced: Mapping[str, str] | None = None,
    pools: Pools | None = None,
    symbols: Symbols | None = None,
) -> Callable[[RecipeFunction], RecipeFunction]:
    """Registers a function that gives the tensors of some operators the values they need.

    Args:
        ops: Exact operator names, ``"namespace::name"``. All overloads are meant.
        cpu: Arguments that the operator wants on the CPU whatever the device of the call.
        parameters: What the user may set; the function reads it with `RecipeCall.parameter`.
        reads_step: The function reads `RecipeCall.batch`. Calls of one signature in steps with
            other batches are then rows of their own.
        produced: Operators that the function runs to make an argument, by the argument's name;
            they stand in plan files.
        pools: What may hold fewer blocks than recorded where memory is short.
        symbols: The sizes by which the calls can grow in a sweep.

    Raises:
        ValueError: A name is not exact.
    """

    def register(function: RecipeFunction) -> RecipeFunction:
        origin = _origin.get()
        _registry.add(
            Recipe(
                function, ops, cpu, origin, parameters, reads_step, produced or {}, pools, symbols
            )
        )
        return function

    return register


def register_recipe(made: Recipe) -> None:
    """Registers a recipe as it is; `recipe` makes one of a function."""
    _registry.add(made)


def find_recipe(op: str) -> Recipe | None:
    """Returns the recipe that fills the tensors of an operator; None if it needs none."""
    _load_plugins()
    return _registry.find(op)


def list_recipes() -> tuple[Recipe, ...]:
    """Returns all recipes in the order of their registration, beaten ones included."""
    _load_plugins()
    return tuple(_registry)


def remove_recipe(function: RecipeFunction) -> None:
    """Takes back every registration of a function, so that the recipe it beat is used again.

    Raises:
        KeyError: The function has no registration.
    """
    _registry.remove(function)


def _load_plugins() -> None:
    """Imports the recipe modules of installed packages, once."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    with registering_as("plug-in"):
        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            try:
                entry_point.load()
            except Exception as error:
                # A broken package costs its own recipes, not the run.
                logger.warning("recipes of %s are not loaded: %s", entry_point.value, error)
