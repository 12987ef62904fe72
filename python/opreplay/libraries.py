"""Which shared libraries register an operator: a name comes in, files and warnings go out."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import torch

from opreplay import _C

__all__ = ["Libraries"]


class Libraries:
    """The shared libraries of this process that register an operator, torch's own left out."""

    def __init__(self) -> None:
        """Looks at what this process has mapped by now."""
        self.warnings: list[str] = []
        """What stands in the way of a process without Python, one sentence each."""
        own = (str(Path(torch.__file__).parent), str(Path(_C.__file__).parent))
        self._candidates = [
            _SharedObject(path) for path in _loaded_objects() if not path.startswith(own)
        ]

    def of(self, op: str) -> tuple[str, ...]:
        """Returns the files that register an operator, and warns where that needs Python."""
        namespace, _, name = op.partition("::")
        if namespace in ("aten", "opreplay") or not torch._C._jit_get_schemas_for_operator(op):
            return ()
        found = [one for one in self._candidates if one.registers(namespace, name)]
        at = re.search(r"^debug: registered at (\S+):\d+$", torch._C._dispatch_dump(op), re.M)
        if not found and at is not None and not at[1].endswith((".cpp", ".cc", ".cu", ".h")):
            self._warn(f"{op} is registered from Python; a process without Python lacks it")
        for one in found:
            if one.needs_python():
                self._warn(f"{one.path}, which registers {namespace}::, needs Python to be loaded")
        return tuple(one.path for one in found)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)


class _SharedObject:
    """A loaded shared object, judged by the names in its file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def registers(self, namespace: str, name: str) -> bool:
        """Whether it can register operators and spells this one's name."""
        if not self._has(rb"_ZN5torch7Library"):
            return False
        return self._has(
            rb"\0(?:%b::)?%b[(\0]" % (re.escape(namespace.encode()), re.escape(name.encode()))
        )

    def needs_python(self) -> bool:
        """Whether it names functions of Python's C interface that it does not define itself."""
        return self._has(rb"\0_?Py(?!Init_)[A-Z]\w*\0")

    def _has(self, pattern: bytes) -> bool:
        with (
            Path(self.path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return re.search(pattern, content) is not None


def _loaded_objects() -> list[str]:
    """Files of the shared objects that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps if len(line.split()) > 5)
    return [path for path in paths if ".so" in Path(path).name and Path(path).is_file()]
