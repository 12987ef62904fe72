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
    squares: int | None = None
    """Sum over the sequences of the square of its new tokens; None where the name has none."""
    products: int | None = None
    """Sum over the sequences of its new tokens times its tokens; None where the name has none."""


@dataclass(frozen=True, slots=True)
class Step:
    """The batch of one step."""

    context: Phase
    """Sequences whose prompts are computed."""
    generation: Phase
    """Sequences that generate."""
    annotation: str = field(default="", compare=False)
    """Name that the engine gave the step; steps of other names may have the same batch."""
    guess: str = field(default="", compare=False)
    """One sentence on what the form of the name leaves open, and was guessed; empty if nothing."""

    @property
    def phase(self) -> PhaseName:
        """What the step does."""
        if self.context.sequences:
            return "mixed" if self.generation.sequences else "prefill"
        return "decode" if self.generation.sequences else "idle"


_NONE = Phase()
_SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_VLLM_DETAILED = re.compile(rf"execute_\d+_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
_VLLM = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_VLLM_OLD = re.compile(r"execute_new_(\d+)_cached_(\d+)")
_SGLANG = re.compile(r"step\[(\w+) ([^\]]*)\]")
_ATOM = re.compile(r"(?<![a-z_])(prefill|decode|eager_decode)\[(bs=\d.*)\]")
_NUMBER = re.compile(r"(\w+)=(\d+)")
_CAPTURE = re.compile(r"capture_(?:graph_bs_(\d+)|(\d+)_(?:FULL|DECODE))", re.IGNORECASE)
_LENGTHS = re.compile(r"ctx=\[?([\d, ]+)\]?(?!\.)")


def parse_step(name: str) -> Step | None:
    """Reads the name of an annotation; None if it tells nothing of a batch that can be."""
    step = _parse(name)
    if step is None or not (_can_be(step.context) and _can_be(step.generation)):
        return None
    return replace(step, annotation=name)


def _can_be(phase: Phase) -> bool:
    """Tells whether the counts are no less than zero, and all new tokens are among the keys."""
    queries = phase.queries or 0
    return min(phase.sequences, queries) >= 0 and (phase.keys is None or phase.keys >= queries)


def _parse(name: str) -> Step | None:
    if found := _VLLM_DETAILED.search(name):
        sums = [int(part) for part in found.groups()]
        return Step(_summed(*sums[:5]), _summed(*sums[5:]))
    if found := _VLLM.search(name):
        nc, qc, ng, qg = map(int, found.groups())
        return Step(Phase(nc, qc, None if nc else 0), Phase(ng, qg, None if ng else 0))
    if found := _VLLM_OLD.search(name):
        new, cached = map(int, found.groups())
        queries = keys = None if new else 0
        return Step(
            Phase(new, queries, keys),
            Phase(cached, cached, None if cached else 0),
            guess="the annotation counts prompts that go on among the running sequences: all of "
            "those are taken to generate"
            if cached
            else "",
        )
    if found := _SGLANG.search(name):
        return _sglang(found[1].upper(), dict(_numbers(found[2])))
    if found := _ATOM.search(name):
        return _atom(found[1], found[2])
    if found := _CAPTURE.search(name):
        size = int(found[1] or found[2])
        return Step(
            _NONE,
            Phase(size, size, None),
            guess=f"a graph captured for {size} tokens is taken for {size} sequences that generate",
        )
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


def _summed(count: int, queries: int, keys: int, squares: int, products: int) -> Phase:
    return Phase(count, queries, keys, squares=squares, products=products) if count else _NONE


def _with_sums(count: int, queries: int | None, fields: dict[str, int], prefix: str) -> Phase:
    return Phase(
        count,
        queries,
        fields.get(f"{prefix}sk"),
        squares=fields.get(f"{prefix}sqsq"),
        products=fields.get(f"{prefix}sqsk"),
    )


def _sglang(mode: str, fields: dict[str, int]) -> Step | None:
    size = fields.get("bs")
    if size is None:
        return None
    if mode == "EXTEND":
        return Step(_with_sums(size, fields.get("toks"), fields, "c_"), _NONE)
    if mode == "DECODE":
        return Step(_NONE, _with_sums(size, fields.get("g_sq", size), fields, "g_"))
    if mode == "MIXED" and "c" in fields and "g" in fields:
        context = _with_sums(fields["c"], fields.get("c_sq"), fields, "c_")
        return Step(context, _with_sums(fields["g"], fields.get("g_sq"), fields, "g_"))
    if mode == "MIXED" and "ext" in fields and "dec" in fields:
        decoding = fields["dec"]
        return Step(Phase(size - decoding, fields["ext"], None), Phase(decoding, decoding, None))
    return None


def _atom(kind: str, text: str) -> Step:
    fields = dict(_numbers(text))
    size, queries = fields["bs"], fields.get("tok")
    prompts = 0 if kind == "prefill" else fields.get("p", 0)
    if prompts:  # the sums are those of both phases together
        decoding = size - prompts
        computed = decoding * (fields.get("spec", 0) + 1)
        context = Phase(prompts, None if queries is None else queries - computed, None)
        return Step(context, Phase(decoding, computed, None))
    phase = _with_sums(size, queries, fields, "")
    told = _LENGTHS.search(text)
    lengths = tuple(int(part) for part in told[1].split(",") if part.strip()) if told else ()
    if len(lengths) == size:
        phase = replace(phase, keys=sum(lengths), lengths=lengths)
    return Step(phase, _NONE) if kind == "prefill" else Step(_NONE, phase)
