"""Values on the command line that several commands take: texts come in, checked values go out."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["share", "tolerances", "writable"]


def share(text: str) -> float:
    """Reads a share, as ``5%`` or ``0.05``."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 10:
        raise argparse.ArgumentTypeError(f"must be a share such as 5% or 0.05, got {text}")
    return value


def tolerances(text: str) -> tuple[float, float]:
    """Reads ``RTOL,ATOL``."""
    try:
        relative, absolute = (float(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be two numbers RTOL,ATOL, got {text}") from error
    return relative, absolute


def writable(text: str) -> Path:
    """A path that results can be written to, checked before a long run instead of after it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: permission denied")
    return path
