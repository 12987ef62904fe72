"""The one error of this room: a file that cannot be read as a trace."""

from __future__ import annotations

__all__ = ["TraceError"]


class TraceError(ValueError):
    """A file is unreadable, cut off, foreign or empty; the text is one sentence with the remedy."""
