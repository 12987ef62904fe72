"""Splits a total into the lengths of its parts: integers in, a list of integers out."""

from __future__ import annotations

__all__ = ["split", "starts"]


def split(total: int, parts: int, *, longest: int | None = None) -> list[int]:
    """Splits a total as evenly as it goes, the longer parts first.

    Args:
        total: Sum of the parts.
        parts: How many there are.
        longest: Length of the first part where that is known; the rest is split evenly. A total
            that does not fit into `parts` of this length is cut to what fits, because buffers
            are often padded at their end.
    """
    if parts == 0:
        return []
    if longest is None:
        base, rest = divmod(total, parts)
        return [base + 1] * rest + [base] * (parts - rest)
    total = min(total, parts * longest)
    first = max(min(longest, total - (parts - 1)), -(-total // parts))
    return [first, *split(total - first, parts - 1)]


def starts(lengths: list[int]) -> list[int]:
    """Returns the running sum of lengths, beginning with zero: one entry more than lengths."""
    sums = [0]
    for length in lengths:
        sums.append(sums[-1] + length)
    return sums
