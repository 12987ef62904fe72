"""The sequences of a step: sizes of a call come in, query and key lengths go out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.lengths import prompt_lengths, split, split_below
from opreplay.tables import block
from opreplay.trace.steps import Phase, Step

__all__ = ["UNBOUNDED_LENGTH", "Batch", "choose_batch", "choose_rows"]

UNBOUNDED_LENGTH = 1024
"""Longest sequence taken where an operator has no bound of its own [tokens]."""


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
    call: RecipeCall,
    sequences: int,
    queries: int | None,
    *,
    longest: int,
    longest_query: int | None = None,
    exact: bool = False,
    decode: bool = False,
    seed: int = 0,
) -> Batch:
    """Chooses lengths that have the totals of the step's annotation, within the operator's bounds.

    An operator may serve a part of the step: where the whole does not fit its sizes and the prompts
    or the generating sequences alone fit exactly, these are taken.

    Without an annotation as many queries as sequences are taken for decode: keys are uniform from
    half of the bound to all of it, because a server's sequences are all at different places. More
    queries are whole prompts of equal length, which the cache does not hold yet.

    Args:
        call: Has the annotation, gets the assumptions.
        sequences: B.
        queries: Tokens that the operator has room for; None where it has no such bound.
        longest: Tokens that a sequence can have.
        longest_query: Tokens that the sequence with most computes, where that was recorded.
        exact: True if `longest` was recorded as the length of the longest sequence.
        decode: True if the operator serves generating sequences alone.
        seed: Chooses the draws.

    Raises:
        RecipeError: The queries do not fit into the sequences.
    """
    if longest < 1:
        raise RecipeError(f"no sequence fits: the longest may have {longest} tokens")
    step = _taken(call, sequences, queries, longest_query, decode=decode)
    if step is None:
        total = sequences if queries is None else queries
        generating = decode or total <= sequences
        phase = Phase(min(total, sequences) if generating else sequences, total, None)
        step = Step(Phase(), phase) if generating else Step(phase, Phase())
        if not generating:
            lengths = split(total, sequences, longest=longest_query)
            _tell_padding(call, "queries", total, lengths)
    # Engines put the sequences that decode first.
    generated = _generation(call, step.generation, longest, seed)
    bound = longest if exact and not step.generation.sequences else None
    prompts = _context(call, step.context, longest, longest_query, bound, seed)
    padding = torch.zeros(
        sequences - step.generation.sequences - step.context.sequences, dtype=torch.int32
    )
    return Batch(
        torch.cat([generated.query_lens, prompts.query_lens, padding]),
        torch.cat([generated.seq_lens, prompts.seq_lens, padding]),
    )


def choose_rows(
    call: RecipeCall,
    sequences: int,
    queries: int,
    keys: int,
    *,
    longest_query: int | None,
    longest_keys: int | None,
) -> Batch:
    """Chooses lengths that add up to the rows of a call whose sequences lie one after the other.

    Args:
        call: Has the annotation, gets the assumptions.
        sequences: B.
        queries: Rows of queries.
        keys: Rows of keys.
        longest_query: Queries of the sequence with most, where that was recorded.
        longest_keys: Keys of the sequence with most, where that was recorded.
    """
    step = _taken(call, sequences, queries, longest_query)
    if step is None:
        if sequences > 1:
            call.assume("the trace has no lengths: the rows are split evenly below the longest")
        query_lens = split(queries, sequences, longest=longest_query)
        key_lens = _key_lengths(query_lens, keys, longest_keys)
        _tell_padding(call, "queries", queries, query_lens)
        _tell_padding(call, "keys", keys, key_lens)
        return Batch(_int32(query_lens), _int32(key_lens))
    generation, context = step.generation, step.context
    generating = split(generation.queries or 0, generation.sequences, longest=longest_query)
    prompts = split(context.queries or 0, context.sequences, longest=longest_query)
    query_lens = generating + prompts
    if generation.keys is not None and context.keys == keys - generation.keys:
        key_lens = [
            *_key_lengths(generating, generation.keys, longest_keys),
            *_key_lengths(prompts, context.keys, longest_keys),
        ]
    else:
        call.assume("the annotation does not tell the rows of keys: they are split evenly")
        key_lens = _key_lengths(query_lens, keys, longest_keys)
    padding = [0] * (sequences - len(query_lens))
    return Batch(_int32(query_lens + padding), _int32(key_lens + padding))


def _tell_padding(call: RecipeCall, what: str, rows: int, lengths: list[int]) -> None:
    if lengths and sum(lengths) < rows:
        call.assume(
            f"{sum(lengths)} of {rows} rows of {what} are all that {len(lengths)} sequences of the "
            "recorded longest have: the others were taken as padding"
        )


def _key_lengths(query_lens: list[int], keys: int, longest: int | None) -> list[int]:
    """Splits rows of keys: each sequence has its new ones, and one has the most where it can be."""
    count, before = len(query_lens), keys - sum(query_lens)
    if before < 0 or count == 0:
        return split(keys, count, longest=longest)
    most = query_lens.index(max(query_lens))
    shares = split(before, count)
    if longest is not None and count > 1 and 0 <= longest - query_lens[most] <= before:
        own = longest - query_lens[most]
        shares = split(before - own, count - 1)
        shares.insert(most, own)
    lengths = [new + share for new, share in zip(query_lens, shares, strict=True)]
    fit = longest is None or max(lengths) <= longest
    return lengths if fit else split(keys, count, longest=longest)


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _taken(
    call: RecipeCall,
    sequences: int,
    queries: int | None,
    longest_query: int | None,
    *,
    decode: bool = False,
) -> Step | None:
    """Returns what the operator serves of the step; None, and an assumption, if nothing fits."""
    if call.batch is None:
        return None
    whole = call.batch
    if whole.guess:
        call.assume(whole.guess)
    step = _fitted(whole, queries)
    if not (decode and step.context.sequences) and _fits(step, sequences, queries, longest_query):
        return step
    for part in (Step(Phase(), whole.generation), Step(whole.context, Phase())):
        phase = part.generation if part.generation.sequences else part.context
        step = _fitted(part, queries)
        if decode and step.context.sequences:
            continue
        if phase.sequences == sequences and _fits(step, sequences, queries, longest_query):
            fitted = step.context.queries or step.generation.queries
            if queries is None or fitted == queries:
                return step
    call.assume(
        f"the annotation's batch ({_told(_fitted(whole, queries))}) does not fit {sequences} "
        f"sequences of {queries} queries: it was not used"
    )
    return None


def _fitted(step: Step, queries: int | None) -> Step:
    """Takes totals that the name lacks from the operator: all queries are the step's."""
    generation, context = step.generation, step.context
    if generation.queries is None:
        generation = replace(generation, queries=generation.sequences)
    if context.queries is None:
        left = context.sequences if queries is None else queries - (generation.queries or 0)
        context = replace(context, queries=max(left, 0))
    return Step(context, generation)


def _fits(step: Step, sequences: int, queries: int | None, longest_query: int | None) -> bool:
    phases = (step.context, step.generation)
    count = sum(phase.sequences for phase in phases)
    total = sum(phase.queries or 0 for phase in phases)
    enough = all((phase.queries or 0) >= phase.sequences for phase in phases)
    short = longest_query is None or all(
        (phase.queries or 0) <= phase.sequences * longest_query for phase in phases
    )
    return 0 < count <= sequences and enough and short and (queries is None or total <= queries)


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


def _context(
    call: RecipeCall,
    phase: Phase,
    longest: int,
    longest_query: int | None,
    bound: int | None,
    seed: int,
) -> Batch:
    """Chooses the prompts; `bound` is what the longest of them has, where that is known."""
    if phase.lengths is not None:
        return _prompts_of_lengths(call, phase.lengths, phase.queries or 0)
    if phase.squares is not None:
        batch = _prompts_of_sums(phase, longest, longest_query)
        if batch is not None:
            return batch
        call.assume("no lengths of prompts with the annotation's sums of squares were found")
    query_lens = _split(phase, longest, longest_query)
    if phase.keys is None:
        most = int(query_lens.max()) if phase.sequences else 0
        if bound is not None and phase.sequences and bound > most:
            call.assume(f"the trace has no key lengths of prompts: {most} to {bound} are drawn")
            drawn = block.seq_lens(phase.sequences, low=most, high=bound, maximum=bound, seed=seed)
            return Batch(query_lens, drawn)
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


def _prompts_of_sums(phase: Phase, longest: int, longest_query: int | None) -> Batch | None:
    """Returns prompts whose lengths have all sums of the annotation; None if none are found."""
    sums = (phase.queries, phase.keys, phase.squares, phase.products)
    known = [number for number in sums if number is not None]
    if len(known) < len(sums):
        return None
    found = prompt_lengths(phase.sequences, *known, longest=longest)
    if found is None or max(length for length, _ in found) > (longest_query or longest):
        return None
    query_lens, seq_lens = torch.tensor(found, dtype=torch.int32).unbind(1)
    return Batch(query_lens, seq_lens)


def _split(phase: Phase, longest: int, longest_query: int | None = None) -> torch.Tensor:
    lengths = split(phase.queries or 0, phase.sequences, longest=longest_query)
    if lengths and lengths[0] > longest:
        raise RecipeError(
            f"{phase.queries} queries of {phase.sequences} sequences of at most {longest} tokens"
        )
    return torch.tensor(lengths, dtype=torch.int32)
