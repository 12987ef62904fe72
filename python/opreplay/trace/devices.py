"""The accelerators of a trace: what stands around its events comes in, their names go out."""

from __future__ import annotations

import json

__all__ = ["device_names"]

_KEY = b'"deviceProperties"'


def device_names(text: bytes) -> tuple[str, ...]:
    """Returns the names in ``deviceProperties``.

    Args:
        text: The part of the document before its events, or that behind them.
    """
    at = text.rfind(_KEY)
    if at < 0:
        return ()
    value = text[at + len(_KEY) :].decode(errors="replace").lstrip().removeprefix(":").lstrip()
    try:
        properties, _ = json.JSONDecoder().raw_decode(value)
    except ValueError:
        return ()
    if not isinstance(properties, list):
        return ()
    names = (one.get("name") for one in properties if isinstance(one, dict))
    return tuple(name for name in names if isinstance(name, str) and name)
