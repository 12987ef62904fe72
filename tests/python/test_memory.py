from pathlib import Path

import pytest

from opreplay import memory as module
from opreplay.memory import default_memory_budget, free_memory


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:  2000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\n"


def test_available_memory_is_read_from_meminfo(tmp_path):
    write_tree(tmp_path, {"meminfo": MEMINFO})
    assert module._available_memory(tmp_path / "meminfo") == 1000 * 1024


def test_meminfo_without_the_available_memory_is_an_error(tmp_path):
    write_tree(tmp_path, {"meminfo": "MemTotal: 1 kB\n"})
    with pytest.raises(OSError, match="MemAvailable"):
        module._available_memory(tmp_path / "meminfo")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n"}, []),
        ({}, []),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "100\n",
                "sys/fs/cgroup/a/b/memory.stat": "inactive_file 0\n",
                "sys/fs/cgroup/a/memory.max": "1000\n",
                "sys/fs/cgroup/a/memory.current": "300\n",
                "sys/fs/cgroup/a/memory.stat": "anon 10\ninactive_file 50\n",
            },
            [1000 - 300 + 50],
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "500\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "600\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 20\ninactive_file 10\n",
            },
            [0],
        ),
    ],
    ids=["no limit", "no control groups", "version 2, limit of the parent", "version 1, used up"],
)
def test_control_groups_leave_their_limit_minus_what_is_used(tmp_path, files, expected):
    assert list(module._cgroup_rests(write_tree(tmp_path, files))) == expected


def test_the_default_budget_is_four_fifths_of_what_is_free(monkeypatch):
    assert 0 < free_memory("cpu") < 1 << 50
    monkeypatch.setattr(module, "free_memory", lambda device: 1000 if device == "cpu" else 0)
    assert default_memory_budget("cpu") == 800


def test_the_free_memory_of_an_accelerator_is_asked_of_its_runtime(monkeypatch):
    monkeypatch.setattr(
        module.torch.accelerator, "get_memory_info", lambda _: (123, 456), raising=False
    )
    assert free_memory("cuda:0") == 123
