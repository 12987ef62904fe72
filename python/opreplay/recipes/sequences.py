"""The sequences of a step: sizes of a call come in, query and key lengths go out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from opreplay.recipes.call import RecipeCall, RecipeError
from opreplay.recipes.lengths import split
from opreplay.tables import block

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
        phase = "decode" if tokens == count else "prefill"
        low, high = int(self.seq_lens.min()), int(self.seq_lens.max())
        lengths = f"length {low}" if low == high else f"lengths {low} to {high}"
        return f"{phase} of {count} sequences, {tokens} queries, {lengths}"


def choose_batch(
    call: RecipeCall, sequences: int, queries: int, *, longest: int, seed: int = 0
) -> Batch:
    """Chooses lengths within the bounds of an operator.

    As many queries as sequences are taken for decode: keys are uniform from half of the bound to
    all of it, because a server's sequences are all at different places. More queries are whole
    prompts of equal length, which the cache does not hold yet.

    Args:
        call: Gets the assumption.
        sequences: B.
        queries: Tokens of the step.
        longest: Tokens that a sequence can have.
        seed: Chooses the draws.

    Raises:
        RecipeError: The queries do not fit into the sequences.
    """
    if longest < 1:
        raise RecipeError(f"no sequence fits: the longest may have {longest} tokens")
    query_lens = torch.tensor(split(queries, sequences), dtype=torch.int32)
    if sequences and int(query_lens.max()) > longest:
        raise RecipeError(f"{queries} queries of {sequences} sequences of at most {longest} tokens")
    if queries > sequences:
        call.assume("the trace has no lengths: whole prompts of equal length are taken")
        return Batch(query_lens, query_lens)
    low = max(1, (longest + 1) // 2)
    call.assume(f"the trace has no lengths: {low} to {longest} keys are drawn for each sequence")
    seq_lens = block.seq_lens(sequences, low=low, high=longest, maximum=longest, seed=seed)
    return Batch(query_lens, seq_lens)
