"""Every Python block and every command in README and docs runs as a reader would run it.

Neighbouring blocks marked ``python`` run in one process, lines that begin with ``$ `` in blocks
marked ``console`` in the shell; both in one folder per page, where ``trace.json.gz`` lies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def shell_environment():
    """The environment's own commands come first, as they do for a user who activated it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return dict(os.environ, PATH=path, COLUMNS="160")


def run(command, folder, **options):
    done = subprocess.run(
        command, cwd=folder, env=shell_environment(), capture_output=True, text=True, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def steps(page):
    """Commands and Python blocks in reading order; neighbouring Python blocks share a process."""
    script = ""
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            script += text
            continue
        if script:
            yield [sys.executable, "-W", "ignore", "-c", script]
        for line in text.splitlines():
            if line.startswith("$ "):
                yield line[2:]
    if script:
        yield [sys.executable, "-W", "ignore", "-c", script]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_and_python_of_a_page_run(page, tmp_path):
    shutil.copy(ROOT / "tests" / "data" / "tiny.json.gz", tmp_path / "trace.json.gz")
    for step in steps(page):
        run(step, tmp_path, shell=isinstance(step, str))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_of_a_page_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_make_targets_of_the_readme_are_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^    make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_reasons_in_the_docs_are_the_closed_list():
    from opreplay.trace.call import REASONS

    named = re.findall(
        r"^\| `(\w+)` \| (?:skipped|failed) ", (ROOT / "docs/results.md").read_text(), re.M
    )
    assert tuple(named) == REASONS


def test_tree_in_the_readme_names_what_is_there():
    tree = (ROOT / "README.md").read_text().split("## Where things are")[1].split("##")[0]
    for name in re.findall(r"\b[\w/]+(?:\.py|/)", tree):
        found = [ROOT / name, ROOT / "python" / "opreplay" / name, ROOT / "csrc" / name]
        assert any(path.exists() for path in found), name
