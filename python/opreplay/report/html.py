"""A results file as one page: its JSON object comes in, HTML that needs no network goes out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["write_html"]


def write_html(results: Mapping[str, Any], path: str | Path) -> None:
    """Writes a page with a table to sort and search, charts, coverage and the environment.

    Args:
        results: The object of a results file (``opreplay-results/1``).
        path: The file to write, some 5 MB: the charts' library is part of it.

    Raises:
        ImportError: Jinja2 or Plotly is missing.
    """
    try:
        from jinja2 import Environment
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(
            f"--html needs {error.name}: pip install 'opreplay[report]' installs it"
        ) from error
    template = files("opreplay.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    text = page.render(
        results=results,
        shares=_shares(results["totals"]),
        plotly=get_plotlyjs(),
        data=_as_script(results["rows"]),
    )
    Path(path).write_text(text, encoding="utf-8")


def _shares(totals: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for all rows, one for the timed ones, one for each reason in the order given."""
    whole = {**totals, "count": totals["signatures"]}
    timed = {k: v for k, v in totals["by_status"].items() if k == "ok"}
    return [
        {
            "name": name,
            **share,
            "host_share": _percent(share["host_us"], totals["host_us"]),
            "device_share": _percent(share["device_us"], totals["device_us"]),
        }
        for name, share in [("all", whole), *timed.items(), *totals["by_reason"].items()]
    ]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""


def _as_script(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it ends the element."""
    return json.dumps(value).replace("<", "\\u003c").replace("&", "\\u0026")
