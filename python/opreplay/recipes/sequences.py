"""The sequences of a step: sizes of a call come in, query and key lengths go out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.lengths import prompt_lengths, split, split_below
from opreplay.tables import block
from opreplay.trace.steps import Phase, Step

__all__ = ["Batch", "choose_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Query and key lengths of the sequences of one step."""

    query_lens: torch.Tensor
    """int32 [B] on the CPU: tokens that each sequence computes."""
    seq_lens: torch.Tensor
    """int32 [B] on the CPU: tokens that each sequence has, the new ones included."""

    def __str__(self) -> str:
        """One line for the row."""
        count, tokens = self.query_lens.numel(), int(self.query_lens.sum())
        if count == 0:
            return "no sequences"
        single = int((self.query_lens == 1).sum())
        phase = "decode" if single == tokens else "mixed step" if single else "prefill"
        low, high = int(self.seq_lens.min()), int(self.seq_lens.max())
        lengths = f"length {low}" if low == high else f"lengths {low} to {high}"
        return f"{phase} of {count} sequences, {tokens} queries, {lengths}"


def choose_batch(
    call: RecipeCall, sequences: int, queries: int | None, *, longest: int, seed: int = 0
) -> Batch:
    """Chooses lengths that have the totals of the step's annotation, within the operator's bounds.

    Without an annotation as many queries as sequences are taken for decode: keys are uniform from
    half of the bound to all of it, because a server's sequences are all at different places. More
    queries are whole prompts of equal length, which the cache does not hold yet.

    Args:
        call: Has the annotation, gets the assumptions.
        sequences: B.
        queries: Tokens that the operator has room for; None where it has no such bound.
        longest: Tokens that a sequence can have.
        seed: Chooses the draws.

    Raises:
        RecipeError: The queries do not fit into the sequences.
    """
    if longest < 1:
        raise RecipeError(f"no sequence fits: the longest may have {longest} tokens")
    if call.batch is not None and call.batch.guess:
        call.assume(call.batch.guess)
    step = None if call.batch is None else _fitted(call.batch, queries)
    if step is not None and not _fits(step, sequences, queries):
        call.assume(
            f"the annotation's batch ({_told(step)}) does not fit {sequences} sequences of "
            f"{queries} queries: it was not used"
        )
        step = None
    if step is None:
        total = sequences if queries is None else queries
        decode = total <= sequences
        phase = Phase(total if decode else sequences, total, None)
        step = Step(Phase(), phase) if decode else Step(phase, Phase())
    # Engines put the sequences that decode first.
    generated = _generation(call, step.generation, longest, seed)
    prompts = _context(call, step.context, longest)
    padding = torch.zeros(
        sequences - step.generation.sequences - step.context.sequences, dtype=torch.int32
    )
    return Batch(
        torch.cat([generated.query_lens, prompts.query_lens, padding]),
        torch.cat([generated.seq_lens, prompts.seq_lens, padding]),
    )


def _fitted(step: Step, queries: int | None) -> Step:
    """Takes totals that the name lacks from the operator: all queries are the step's."""
    generation, context = step.generation, step.context
    if generation.queries is None:
        generation = replace(generation, queries=generation.sequences)
    if context.queries is None:
        left = context.sequences if queries is None else queries - (generation.queries or 0)
        context = replace(context, queries=max(left, 0))
    return Step(context, generation)


def _fits(step: Step, sequences: int, queries: int | None) -> bool:
    phases = (step.context, step.generation)
    count = sum(phase.sequences for phase in phases)
    total = sum(phase.queries or 0 for phase in phases)
    enough = all((phase.queries or 0) >= phase.sequences for phase in phases)
    return 0 < count <= sequences and enough and (queries is None or total <= queries)


def _told(step: Step) -> str:
    context, generation = step.context, step.generation
    return (
        f"{context.sequences} prompts of {context.queries} tokens, "
        f"{generation.sequences} generating {generation.queries}"
    )


def _generation(call: RecipeCall, phase: Phase, longest: int, seed: int) -> Batch:
    query_lens = _split(phase, longest)
    if not phase.sequences:
        return Batch(query_lens, query_lens)
    if phase.lengths is not None:
        return Batch(query_lens, torch.tensor(phase.lengths, dtype=torch.int32))
    least = int(query_lens.max())
    if phase.keys is not None:
        kind: block.LengthKind = "constant" if phase.carried else "uniform"
        if phase.carried:
            call.assume("key lengths go on from the prompts that the trace computed, all alike")
        lengths = block.seq_lens(
            phase.sequences, kind=kind, low=least, high=longest, total=phase.keys, seed=seed
        )
        return Batch(query_lens, lengths)
    low = max(least, (longest + 1) // 2)
    call.assume(f"the trace has no key lengths: {low} to {longest} are drawn for each sequence")
    drawn = block.seq_lens(phase.sequences, low=low, high=longest, maximum=longest, seed=seed)
    return Batch(query_lens, drawn)


def _context(call: RecipeCall, phase: Phase, longest: int) -> Batch:
    if phase.lengths is not None:
        return _prompts_of_lengths(call, phase.lengths, phase.queries or 0)
    if phase.squares is not None:
        batch = _prompts_of_sums(phase, longest)
        if batch is not None:
            return batch
        call.assume("no lengths of prompts with the annotation's sums of squares were found")
    query_lens = _split(phase, longest)
    if phase.keys is None:
        call.assume("the trace has no key lengths of prompts: whole prompts of equal length")
        return Batch(query_lens, query_lens)
    # What the cache holds already belongs to the first prompts, as of one computed in chunks.
    prefix = phase.keys - int(query_lens.sum())
    seq_lens = []
    for length in query_lens.tolist():
        taken = min(prefix, longest - length)
        seq_lens.append(length + taken)
        prefix -= taken
    if prefix:
        raise RecipeError(f"{phase.keys} keys of {phase.sequences} sequences of {longest} at most")
    return Batch(query_lens, torch.tensor(seq_lens, dtype=torch.int32))


def _prompts_of_lengths(call: RecipeCall, lengths: tuple[int, ...], queries: int) -> Batch:
    if queries < sum(lengths):
        call.assume(f"{queries} new tokens are split evenly among prompts of known lengths")
    query_lens = split_below(queries, lengths)
    return Batch(
        torch.tensor(query_lens, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
    )


def _prompts_of_sums(phase: Phase, longest: int) -> Batch | None:
    """Returns prompts whose lengths have all sums of the annotation; None if none are found."""
    sums = (phase.queries, phase.keys, phase.squares, phase.products)
    known = [number for number in sums if number is not None]
    if len(known) < len(sums):
        return None
    found = prompt_lengths(phase.sequences, *known, longest=longest)
    if found is None:
        return None
    query_lens, seq_lens = torch.tensor(found, dtype=torch.int32).unbind(1)
    return Batch(query_lens, seq_lens)


def _split(phase: Phase, longest: int) -> torch.Tensor:
    lengths = split(phase.queries or 0, phase.sequences)
    if lengths and lengths[0] > longest:
        raise RecipeError(
            f"{phase.queries} queries of {phase.sequences} sequences of at most {longest} tokens"
        )
    return torch.tensor(lengths, dtype=torch.int32)
