"""Top-k of the keys that sparse attention then reads: each row looks at a range of keys."""

from __future__ import annotations

from opreplay.recipes.attention import padded
from opreplay.recipes.call import RecipeCall
from opreplay.recipes.registry import recipe
from opreplay.recipes.sequences import choose_batch

__all__: list[str] = []


@recipe(
    "_C::top_k_per_row_prefill",
    "aiter::top_k_per_row_prefill",
    "aiter::_top_k_per_row_prefill",
)
def ranges_of_rows(call: RecipeCall) -> str:
    """Starts and ends of rows in the keys; a row of a prompt sees one key more than that before."""
    starts, ends = (call.tensor(call.require(name)) for name in ("rowStarts", "rowEnds"))
    rows, keys = ends.numel, call.tensor("logits").dims[1]
    call.assume("the rows are the last of one prompt, whose keys are all that the logits have")
    starts.fill_integers(0, 1)
    before = max(0, keys - rows)
    ends.write_list([min(before + row + 1, keys) for row in range(rows)])
    return f"{rows} rows of up to {keys} keys"


@recipe(
    "_C::top_k_per_row_decode",
    "_C::persistent_topk",
    "aiter::top_k_per_row_decode",
    "aiter::_top_k_per_row_decode",
    reads_step=True,
)
def lengths_of_rows(call: RecipeCall) -> str:
    """Lengths of the sequences that generate, within the keys of the logits."""
    lengths = call.tensor(call.require("seq_lens", "seqLens", "lengths"))
    keys = call.tensor("logits").dims[1]
    batch = choose_batch(call, lengths.dims[0], None, longest=keys, decode=True)
    lengths.write(padded(batch.seq_lens, lengths).to(lengths.dtype))
    for workspace in call.present("workspace"):
        workspace.fill_integers(0, 1)
    return str(batch)
