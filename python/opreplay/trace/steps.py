"""What an engine wrote about a step: an annotation's name comes in, sizes of its batch go out.

vLLM, SGLang and ATOM name the annotation around a step after its batch: how many sequences had
their prompts computed, how many generated, and how many tokens that took.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Phase", "PhaseName", "Step", "carry_on", "parse_step"]

PhaseName = Literal["prefill", "decode", "mixed", "idle"]
"""What a step does: prompts, generation, both of them, or neither."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The sequences of a step that are in the same phase."""

    sequences: int = 0
    """How many there are."""
    queries: int | None = 0
    """Tokens that the step computes for all of them; None where the name has no total."""
    keys: int | None = 0
    """Tokens that they have, the new ones included; None where the name has no total."""
    carried: bool = False
    """True if `keys` is not in the name but goes on from earlier steps of the trace."""
    lengths: tuple[int, ...] | None = None
    """Tokens of each sequence; None where the name has totals at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """The batch of one step."""

    context: Phase
    """Sequences whose prompts are computed."""
    generation: Phase
    """Sequences that generate."""
    annotation: str = field(default="", compare=False)
    """Name that the engine gave the step; steps of other names may have the same batch."""

    @property
    def phase(self) -> PhaseName:
        """What the step does."""
        if self.context.sequences:
            return "mixed" if self.generation.sequences else "prefill"
        return "decode" if self.generation.sequences else "idle"


_NONE = Phase()
_SUMS = r"\(sq(\d+)sk(\d+)sqsq\d+sqsk\d+\)"
_VLLM_DETAILED = re.compile(rf"execute_\d+_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
_VLLM = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_VLLM_OLD = re.compile(r"execute_new_(\d+)_cached_(\d+)")
_SGLANG = re.compile(r"step\[(\w+) ([^\]]*)\]")
_ATOM = re.compile(r"(?<![a-z_])(prefill|decode|eager_decode)\[(bs=\d.*)\]")
_NUMBER = re.compile(r"(\w+)=(\d+)")
_LENGTHS = re.compile(r"ctx=\[?([\d, ]+)\]?(?!\.)")


def parse_step(name: str) -> Step | None:
    """Reads the name of an annotation; None if it tells nothing of a batch."""
    step = _parse(name)
    return None if step is None else replace(step, annotation=name)


def _parse(name: str) -> Step | None:
    if found := _VLLM_DETAILED.search(name):
        nc, qc, kc, ng, qg, kg = map(int, found.groups())
        return Step(Phase(nc, qc, kc), Phase(ng, qg, kg))
    if found := _VLLM.search(name):
        nc, qc, ng, qg = map(int, found.groups())
        return Step(Phase(nc, qc, None if nc else 0), Phase(ng, qg, None if ng else 0))
    if found := _VLLM_OLD.search(name):
        new, cached = map(int, found.groups())
        queries = keys = None if new else 0
        return Step(Phase(new, queries, keys), Phase(cached, cached, None if cached else 0))
    if found := _SGLANG.search(name):
        return _sglang(found[1].upper(), dict(_numbers(found[2])))
    if found := _ATOM.search(name):
        return _atom(found[1], found[2])
    return None


def carry_on(steps: Sequence[Step | None]) -> list[Step | None]:
    """Fills in the keys of generating sequences that the names leave open.

    Each prompt that the trace computed goes on generating, one token or more a step, until there
    are fewer sequences; those that end are taken to be of mean length. Sequences that began before
    the trace did have no known length.

    Args:
        steps: The steps of one engine, in order.
    """
    running, tokens = 0, 0
    filled: list[Step | None] = []
    for step in steps:
        if step is not None:
            generation = step.generation
            if generation.keys is None and 0 < generation.sequences <= running:
                kept = tokens * generation.sequences // running
                keys = kept + (generation.queries or generation.sequences)
                generation = replace(generation, keys=keys, carried=True)
                step = replace(step, generation=generation)
            known = generation.keys is not None
            running = generation.sequences if known else 0
            tokens = generation.keys or 0
            context = step.context
            if context.queries is not None:
                running += context.sequences
                tokens += context.keys if context.keys is not None else context.queries
        filled.append(step)
    return filled


def _numbers(text: str) -> list[tuple[str, int]]:
    return [(key, int(value)) for key, value in _NUMBER.findall(text)]


def _sglang(mode: str, fields: dict[str, int]) -> Step | None:
    size = fields.get("bs")
    if size is None:
        return None
    if mode == "EXTEND":
        return Step(Phase(size, fields.get("toks"), fields.get("c_sk")), _NONE)
    if mode == "DECODE":
        return Step(_NONE, Phase(size, fields.get("g_sq", size), fields.get("g_sk")))
    if mode == "MIXED" and "c" in fields and "g" in fields:
        context = Phase(fields["c"], fields.get("c_sq"), fields.get("c_sk"))
        return Step(context, Phase(fields["g"], fields.get("g_sq"), fields.get("g_sk")))
    return None


def _atom(kind: str, text: str) -> Step:
    fields = dict(_numbers(text))
    size, queries, keys = fields["bs"], fields.get("tok"), fields.get("sk")
    told = _LENGTHS.search(text)
    lengths = tuple(int(part) for part in told[1].split(",") if part.strip()) if told else ()
    if len(lengths) != size:
        return Step(*_in_order(kind, Phase(size, queries, keys)))
    return Step(*_in_order(kind, Phase(size, queries, sum(lengths), lengths=lengths)))


def _in_order(kind: str, phase: Phase) -> tuple[Phase, Phase]:
    return (phase, _NONE) if kind == "prefill" else (_NONE, phase)
