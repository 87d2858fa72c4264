"""Programmatic dependent launch: the finalisation is set up while the main kernel still runs.

A program of the first kernel releases the second after its last row; the second waits, before it reads
anything, until the first has ended and its writes are visible. This saves the time between two launches
(docs/lab/tuning.md, "Launches").

NVIDIA, sm_90 on; both instructions do nothing where the launch does not ask for it (Triton's `launch_pdl`),
as under AOTInductor. The compiler takes both as pure, like the assembly of `codegen.exchange`. Each therefore
passes a program number through, so that everything that depends on the number runs after it.
"""

from __future__ import annotations

from .assembly import inline

PROGRAM = "tl.program_id(0)"
RELEASE = "griddepcontrol.launch_dependents"
WAIT = "griddepcontrol.wait"


def released(program: str) -> str:
    """Triton text: the int32 `program`, once the next launch may be set up."""
    return _through(RELEASE, program)


def awaited(program: str) -> str:
    """Triton text: the int32 `program`, once the launch before this one has ended."""
    return _through(WAIT, program)


def _through(instruction: str, value: str) -> str:
    return inline("pass", f"{instruction}; mov.b32 $0, $1;", "=r,r", [value], "tl.int32")
