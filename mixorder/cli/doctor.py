"""`python -m mixorder doctor`: whether everything that mixorder needs is in place, and what to do if not.

Exit status: 0 if nothing has failed, 1 otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from mixorder.cli.parser import Parser
from mixorder.inductor import versions

DESCRIPTION = """\
Check versions, the plugin, environment variables, the GPU, and whether kernels give right results. Without a
GPU, the Triton interpreter runs the kernels. This takes about half a minute.

Each line begins with "ok", "note" (it works, but read this) or "FAILED". The line below says what to do. The
exit status is 1 if anything has failed."""

OK, NOTE, FAILED = "ok", "note", "FAILED"
USE = 'torch.compile(model, options={"mixorder": True})'


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check: `ok`, `note` (it works, but needs attention) or `FAILED`; and what to do."""

    status: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<6}  {self.text}" + (f"\n          {self.remedy}" if self.remedy else "")


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = Parser("python -m mixorder doctor", DESCRIPTION)
    parser.parse_args(argv)
    findings = []
    for check in CHECKS:
        if check is is_right:
            print("Computing gradients: about half a minute.", file=sys.stderr, flush=True)
        findings.append(finding := check())
        print(finding, flush=True)
        if finding.status == FAILED and check in NEEDED:
            print("\nThe other checks need this one.")
            break
    else:
        print(f"\n{conclusion(findings)}")
    return int(any(finding.status == FAILED for finding in findings))


def conclusion(findings: Sequence[Finding]) -> str:
    """A line that sums up the findings of all checks."""
    statuses = [finding.status for finding in findings]
    if FAILED in statuses:
        return "Something is wrong: see FAILED above."
    told = "Nothing has failed. Read the notes above." if NOTE in statuses else "All is well."
    return f"{told} Use it: {USE}"


# Versions.


def torch_version() -> Finding:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding(FAILED, "torch is not installed", "Install it as https://pytorch.org says.")
    if versions.older(version, versions.OLDEST):
        return Finding(FAILED, f"torch {version}", f"mixorder needs torch {versions.OLDEST} or newer.")
    if versions.older(versions.NEWEST, version):
        remedy = f"The newest that mixorder was tested with is {versions.NEWEST}."
        return Finding(NOTE, f"torch {version}", remedy)
    return Finding(OK, f"torch {version}")


def triton_version() -> Finding:
    torch = metadata.version("torch")
    tested, command = versions.TESTED.get(versions.release(torch)), versions.install_triton(torch)
    try:
        version: str = importlib.import_module("triton").__version__  # the package has several names
    except ImportError:
        return Finding(
            FAILED, "triton is not installed", f"{command} (CPU builds of torch do not include it)."
        )
    if tested and versions.release(version) != versions.release(tested):
        remedy = f"torch {versions.release(torch)} is built against, and tested with, {tested}: {command}."
        return Finding(NOTE, f"triton {version}", remedy)
    return Finding(OK, f"triton {version}")


# The plugin.


def plugin() -> Finding:
    import mixorder

    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        remedy = "`import mixorder` before the first compile, or unset it."
        return Finding(NOTE, "TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch loads no plugins", remedy)
    runs = version = mixorder.__version__
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("mixorder")
    if version != runs:
        folder = Path(mixorder.__file__).parent.parent
        remedy = f"Install it again from the folder that it runs from: {folder}"
        return Finding(NOTE, f"installed as mixorder {version}, but {runs} runs", remedy)
    code = "import torch; torch.compile(lambda x: x, options={'mixorder': True})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return Finding(OK, f"mixorder {version}: `import torch` loads it")
    said = done.stderr.strip().splitlines()[-1:]
    remedy = "pip install mixorder, or `import mixorder` before the first compile."
    return Finding(NOTE, f"torch.compile does not know the option by itself: {' '.join(said)}", remedy)


def switched_on() -> Finding:
    from dataclasses import fields

    from mixorder.options import Options, switched_off, understood, variables

    (switch,) = (option for option in fields(Options) if option.name == "enabled")
    settings = variables(switch)
    said = ", ".join(f"{name}={value!r}" for name, value in settings) or "no variable is set"
    strange = [name for name, value in settings if understood(value) is None]
    if strange:
        return Finding(NOTE, f"not understood: {said}", f"Set {', '.join(strange)} to 1 or 0.")
    why = f"({said})" if len(settings) < 2 else f"({said}, {settings[0][0]} decides)"
    if switched_off():
        return Finding(NOTE, f"off, whatever options say {why}", "Unset MIXORDER, or set it to 1.")
    if Options.current().enabled:
        return Finding(OK, f"on for every compile that does not say otherwise {why}")
    status = NOTE if settings else OK
    return Finding(status, f"off, except where options say otherwise {why}", f"{USE}, or MIXORDER=1.")


# The GPU and a kernel.


def gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip or "the CPU"
        remedy = "`explain` works without one. mixorder only makes code on a GPU faster."
        return Finding(NOTE, f"no GPU: torch is built for {built}", remedy)
    from mixorder.inductor.kernels import has_triton

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if not has_triton():
        remedy = "Inductor needs compute capability 7.0 or newer (AMD: a ROCm build), and so does mixorder."
        return Finding(FAILED, f"Triton cannot drive {names[0]}", remedy)
    if torch.version.hip is None and torch.cuda.get_device_capability()[0] < 8:
        remedy = "This GPU is older than Ampere: programs cannot share wide rows, and bf16 is slow."
        return Finding(NOTE, ", ".join(names), remedy)
    return Finding(OK, ", ".join(names))


def is_right() -> Finding:
    """Run the demo at a small size, in a separate process: one process interprets or compiles, not both."""
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu and importlib.util.find_spec("numpy") is None:
        remedy = "pip install numpy: without a GPU, the interpreter needs it."
        return Finding(NOTE, "no gradients were computed: Triton's interpreter needs NumPy", remedy)
    sizes = "--batch 4 --seq 512 --dim 256" if on_gpu else "--batch 2 --seq 8 --dim 32"
    device = "cuda" if on_gpu else "interpreter"
    arguments = f"--device {device} --layers 1 {sizes}".split()
    command = [sys.executable, "-m", "mixorder", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    how = "on the GPU" if on_gpu else "in the Triton interpreter"
    if done.returncode == 0:
        return Finding(OK, f"gradients {how} are as accurate as without mixorder")
    said = " ".join((done.stdout + done.stderr).strip().splitlines()[-1:])
    return Finding(FAILED, f"gradients {how}: {said}"[:500], f"Report the output of: {' '.join(command[1:])}")


Check = Callable[[], Finding]
NEEDED: tuple[Check, ...] = (torch_version, triton_version)
CHECKS: tuple[Check, ...] = (*NEEDED, plugin, switched_on, gpu, is_right)
