"""Tells how much memory is free: a device name comes in, bytes go out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["default_memory_budget", "free_memory"]


def default_memory_budget(device: str) -> int:
    """Returns 80 % of the memory that is free on a device now [bytes]."""
    return free_memory(device) * 4 // 5


def free_memory(device: str) -> int:
    """Returns the memory that a process can still take on a device [bytes].

    On the CPU it is the smaller of what the kernel calls available and what the control groups of
    this process leave.
    """
    if torch.device(device).type != "cpu":
        free, _total = torch.accelerator.get_memory_info(torch.device(device))
        return int(free)
    root = Path("/")
    return min([_available_memory(root / "proc/meminfo"), *_cgroup_rests(root)])


def _available_memory(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{meminfo} has no line MemAvailable")


def _cgroup_rests(root: Path) -> Iterator[int]:
    """Yields what each memory control group of this process leaves, of version 1 and 2.

    A limit of a parent group holds for the child too, so every level up to the mount point counts.
    Inside a container the mount shows the container's own group at its root.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return
    mount = root / "sys/fs/cgroup"
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            base, limit, usage = mount, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = mount / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        directory = base / path.lstrip("/")
        for level in (directory, *directory.parents):
            if (
                level.is_relative_to(base)
                and (rest := _group_rest(level, limit, usage)) is not None
            ):
                yield rest


def _group_rest(directory: Path, limit: str, usage: str) -> int | None:
    """Returns limit minus usage of one group; page cache that can be dropped counts as free."""
    try:
        allowed = (directory / limit).read_text().strip()
        used = int((directory / usage).read_text())
        statistics = (directory / "memory.stat").read_text()
    except FileNotFoundError:
        return None
    if allowed == "max":
        return None
    counts = dict(line.split() for line in statistics.splitlines())
    droppable = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    return max(0, int(allowed) - used + droppable)
