"""A stand-alone reproducer of one call: a planned call comes in, the text of one file goes out.

The file holds the operator, sizes, scalars and the integers that a recipe chose; floats and plain
indices are drawn when it runs. It needs torch or libtorch alone, and what registers the operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from opreplay.description import Describer
from opreplay.libraries import Libraries
from opreplay.options import ReplayOptions
from opreplay.plan import PlannedCall
from opreplay.script.contents import ScriptCall, contents_of
from opreplay.script.cpp_text import cpp_text
from opreplay.script.python_text import python_text

__all__ = ["LANGUAGES", "Language", "make_script"]

Language = Literal["cpp", "python"]
LANGUAGES = {"cpp": cpp_text, "python": python_text}
"""What writes a script, by language."""


def make_script(
    call: PlannedCall, language: Language, *, options: ReplayOptions | None = None
) -> str:
    """Writes a file that runs one call by itself.

    Args:
        call: The call.
        language: Of the file.
        options: Imports, seed, recipe parameters, memory budget.

    Raises:
        ValueError: The call cannot run, or a file cannot hold what it needs; says why.
    """
    options = options or ReplayOptions()
    describe = Describer(options)
    described = describe(call)
    if isinstance(described, str):
        raise ValueError(f"{call.op}: {described}")
    resolved, inputs = described.resolved, described.inputs
    try:
        parameters = describe.parameters(described)
        memories, arguments = contents_of(resolved, inputs, parameters)
    except (LookupError, ValueError) as error:
        raise ValueError(f"{call.op}: {error}") from error
    op = resolved.resolved_op
    libraries = (Path(path).name for path in Libraries().of(op))
    notes = [
        str(resolved.schema),
        *([] if inputs.recipe is None else [f"values: {inputs.recipe}"]),
        *(f"assumed: {sentence}" for sentence in (*resolved.assumptions, *inputs.assumptions)),
        *(f"a library that registers it: {name}" for name in libraries),
    ]
    script = ScriptCall(
        op=op,
        overload=resolved.overload,
        notes=tuple(notes),
        mode=described.mode,
        seed=options.seed,
        modules=(
            *(name for name in options.imports if not name.endswith(".so")),
            *describe.modules_of(op),
        ),
        memories=memories,
        arguments=arguments,
    )
    return LANGUAGES[language](script)
