"""Splits totals into the lengths of their parts: integers in, lists of integers out."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["prompt_lengths", "split", "split_below", "split_with_squares", "starts"]

_ATTEMPTS = 64


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


def split_below(total: int, bounds: Sequence[int]) -> list[int]:
    """Splits a total evenly as far as each part's bound allows; what exceeds them all is left."""
    parts = [0] * len(bounds)
    for done, place in enumerate(sorted(range(len(bounds)), key=bounds.__getitem__)):
        parts[place] = min(bounds[place], -(-total // (len(bounds) - done)))
        total -= parts[place]
    return parts


def split_with_squares(total: int, squares: int, parts: int, *, longest: int) -> list[int] | None:
    """Splits a total into parts of at least 1 whose squares have a sum; None if none are found.

    All parts but three lie on a ramp, or are equal with the rest far from them; the last three
    make both sums exact.

    Args:
        total: Sum of the parts.
        squares: Sum of their squares.
        parts: How many there are.
        longest: Length that no part exceeds.
    """
    even = split(total, parts)
    if sum(part * part for part in even) == squares:
        return even if not even or (even[-1] > 0 and even[0] <= longest) else None
    if parts < 4:
        return _solve(total, squares, parts, longest)
    mean = total / parts
    deviation = math.sqrt(max(0.0, squares / parts - mean * mean))
    ramp = [math.sqrt(3) * (2 * i - parts + 1) / (parts - 1) for i in range(parts)]
    # What is solved for holds the ends and the middle of the ramp.
    on_ramp = [z for i, z in enumerate(ramp) if i not in (0, parts // 2, parts - 1)]
    steep = math.sqrt(parts - 1)
    for shape in (on_ramp, [1 / steep] * (parts - 3), [-1 / steep] * (parts - 3)):
        fixed = [min(max(1, round(mean + deviation * z)), longest) for z in shape]
        for attempt in range(_ATTEMPTS):
            tried = [fixed[0] + (attempt + 1) // 2 * (-1) ** attempt, *fixed[1:]]
            if not 1 <= tried[0] <= longest:
                continue
            left = squares - sum(part * part for part in tried)
            solved = _solve(total - sum(tried), left, 3, longest)
            if solved is not None:
                return sorted(tried + solved, reverse=True)
    return None


def _solve(total: int, squares: int, parts: int, longest: int) -> list[int] | None:
    """Finds up to three parts with both sums, by trying every value of the first."""
    if parts == 1:
        return [total] if total * total == squares and 1 <= total <= longest else None
    if parts == 3:
        for first in range(max(1, total - 2 * longest), min(longest, total - 2) + 1):
            two = _solve(total - first, squares - first * first, 2, longest)
            if two is not None:
                return [*two, first]
        return None
    root = 2 * squares - total * total
    difference = math.isqrt(root) if root >= 0 else -1
    if difference < 0 or difference * difference != root or (total + difference) % 2:
        return None
    more, less = (total + difference) // 2, (total - difference) // 2
    return [more, less] if less >= 1 and more <= longest else None


def prompt_lengths(
    count: int, queries: int, keys: int, squares: int, products: int, *, longest: int
) -> list[tuple[int, int]] | None:
    """Finds the queries and keys of prompts that have four sums; None if none are found.

    Tokens that the cache holds already belong to one prompt, or to two of neighbouring lengths.

    Args:
        count: Number of prompts.
        queries: Sum of the queries.
        keys: Sum of the keys.
        squares: Sum of the squares of the queries.
        products: Sum of the products of a prompt's queries and keys.
        longest: Keys that no prompt exceeds.
    """
    held = keys - queries
    if held == 0:
        begun: list[tuple[int, int]] = []
        if products != squares:
            return None
    else:
        weight, rest = divmod(products - squares, held)
        begun = [(weight, held)] if rest == 0 else [(weight, held - rest), (weight + 1, rest)]
    if any(length < 1 or length + before > longest for length, before in begun):
        return None
    total = queries - sum(length for length, _ in begun)
    left = squares - sum(length * length for length, _ in begun)
    others = split_with_squares(total, left, count - len(begun), longest=longest)
    if others is None or (count == len(begun) and total):
        return None
    return [(length, length + before) for length, before in begun] + [(n, n) for n in others]
