"""Skips what needs a GPU where there is none."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or os.environ.get("OPREPLAY_REQUIRE_GPU") == "1":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
