"""What an operator may assume of its integers: a rule for each kind, written from the kernels' own.

Each function takes lists of integers and asserts; none knows how the values were made.
"""

from __future__ import annotations

import itertools
import math


def starts(values, *, total, longest=None):
    """Offsets of consecutive parts; the parts' lengths are returned."""
    assert values[0] == 0
    lengths = [end - begin for begin, end in itertools.pairwise(values)]
    assert min(lengths) >= 0
    assert values[-1] == total
    if longest is not None:
        assert max(lengths) == longest
    return lengths


def key_lengths(values, queries, *, longest):
    """Keys of each sequence: the new ones are among them, and none has more than can be."""
    for keys, new in zip(values, queries, strict=True):
        assert new <= keys <= longest
        assert keys >= 1 or new == 0


def block_table(table, keys, *, block_size, blocks):
    """Blocks exist; those that hold keys belong to one sequence each."""
    assert all(0 <= block < blocks for row in table for block in row)
    used = [b for row, n in zip(table, keys, strict=True) for b in row[: math.ceil(n / block_size)]]
    assert len(used) == sum(math.ceil(n / block_size) for n in keys)
    assert len(set(used)) == len(used)


def pages(indptr, indices, last, *, page_size, blocks):
    """Pages exist, padding included, and belong to one sequence each; keys are returned."""
    assert indptr[-1] <= len(indices)
    counts = starts(indptr, total=indptr[-1])
    assert all(0 <= page < blocks for page in indices)
    used = indices[: indptr[-1]]
    assert len(set(used)) == len(used)
    if last is None:
        return [count * page_size for count in counts]
    assert all(1 <= tokens <= page_size for tokens in last)
    return [
        max(count - 1, 0) * page_size + (tokens if count else 0)
        for count, tokens in zip(counts, last[: len(counts)], strict=True)
    ]


def slots(values, *, room):
    """Places that exist, none written twice; negative ones are skipped."""
    written = [slot for slot in values if slot >= 0]
    assert len(set(written)) == len(written)
    assert all(slot < room for slot in written)
    return written


def consecutive_in_blocks(values, *, block_size):
    """A prompt's tokens follow one another until their block is full."""
    for slot, following in itertools.pairwise(values):
        assert following == slot + 1 or slot % block_size == block_size - 1


def positions(values, *, rows):
    """Rows of the table of cosines and sines."""
    assert all(0 <= position < rows for position in values)


def counts_up(values, queries):
    """The new tokens of a sequence have consecutive positions."""
    begin = 0
    for new in queries:
        mine = values[begin : begin + new]
        assert mine == list(range(mine[0], mine[0] + new)) if mine else new == 0
        begin += new


def states(values, *, count, null):
    """States that exist, none twice, none of them the null state."""
    assert len(set(values)) == len(values)
    assert all(0 <= state < count and state != null for state in values)


def rows_of(values, *, count):
    """Rows that exist, none twice."""
    states(values, count=count, null=None)


def splits(values, *, sequences, each):
    """Where the parts of each sequence begin that are computed apart."""
    assert values == [each * sequence for sequence in range(sequences + 1)]


def owners(values, lengths):
    """The sequence of each token."""
    assert values == [s for s, length in enumerate(lengths) for _ in range(length)]
