"""Launch options of mixorder's kernels that Inductor sets only for its own kernels.

Programmatic dependent launch, for kernels that wait for their predecessor. No contraction of products and
sums, where eager's rounding is emulated, and in kernels whose results are to be eager's. A limit on the
registers of a thread, where more threads fit then, and a larger one where many are spilled. Fewer stages,
where there is too little shared memory.

Inductor (2.11 to 2.15) reads the first two from `triton_meta`, and has no interface that sets them for
user-defined kernels. So they are inserted into the text of the kernels' definitions, and the third as well,
which Inductor does not hand on to Triton by itself.
"""

from __future__ import annotations

import copy
import re
from types import ModuleType
from typing import Any

from . import versions
from .config import emulates_precision_casts
from .mutation_cache import PREFIX
from .wrapping import Function, wrap

LIMIT = "maxnreg"  # Triton's option, for CUDA alone
# With a limit of these, a kernel that spills many registers is compiled again with the next one, and with
# none after the last.
LARGER = {72: 96, 96: 112, 112: 0}

# Processes that compile kernels run a kernel's definition. Where torch does not load plugins, nothing else
# would wrap what hands the limit on to Triton. A kernel may come from a cache when mixorder has gone.
_WRAPPED_THERE = "try:\n    import mixorder\nexcept ImportError:\n    pass\n\n\n"

# By the names of kernels; each has a hash of the kernel's text.
_options: dict[str, dict[str, Any]] = {}


def compile_with(name: str, waits: bool, exact: bool, registers: int) -> None:
    """Compile a kernel for programmatic dependent launch, if its code `waits` for the kernel before it; if
    `exact`, with products and sums as they stand, each of which is rounded; and so that a thread has at most
    so many `registers`, if that is not 0.

    Must be called in the process that compiles the graph, before Inductor writes the kernel's definition.
    """
    _options[name] = {"launch_pdl": waits, "enable_fp_fusion": not exact, LIMIT: registers}


def defined(
    original: Function, self: Any, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any
) -> Any:
    """Wraps Inductor's method that writes a kernel's definition."""
    if kernel_name.startswith(PREFIX) and (meta := _meta(kernel_name)):
        kernel_body = re.sub(r"\btriton_meta=\{", rf"\g<0>{meta}", kernel_body, count=1)
        if f"'{LIMIT}'" in meta:
            kernel_body = re.sub(r"(?m)^(?=@triton_heuristics\b)", _WRAPPED_THERE, kernel_body, count=1)
    return original(self, kernel_name, kernel_body, *args, **kwargs)


def _meta(kernel_name: str) -> str:
    """Entries of `triton_meta`, as text. Inductor appends a number to a kernel's own name."""
    options = _options.get(kernel_name) or _options.get(kernel_name.rpartition("_")[0], {})
    # A product in bfloat16 that is added in bfloat16 would become one instruction on sm_90.
    options = options | ({"enable_fp_fusion": False} if emulates_precision_casts() else {})
    default = {"launch_pdl": False, "enable_fp_fusion": True, LIMIT: 0}
    chosen = (name for name, value in default.items() if options.get(name, value) != value)
    return "".join(f"{name!r}: {options[name]!r}, " for name in chosen)


def fit(module: ModuleType) -> None:
    """Wrap the methods of `torch._inductor.runtime.triton_heuristics` that compile and load a kernel.
    Idempotent."""
    wrap(module, "CachingAutotuner._create_compile_options", _with_a_limit)
    less = versions.loads_with_less(module.CachingAutotuner)
    wrap(module, "CachingAutotuner._make_launchers", _loaded if less else _loaded_with_fewer_stages)


def _with_a_limit(original: Function, self: Any, cfg: Any, compile_meta: dict[str, Any]) -> dict[str, Any]:
    """Hand a limit on registers on to Triton."""
    options: dict[str, Any] = original(self, cfg, compile_meta)
    if compile_meta.get(LIMIT) and compile_meta.get("device_type") == "cuda":
        options[LIMIT] = compile_meta[LIMIT]
    return options


def _loaded(original: Function, self: Any) -> None:
    """Compile a kernel of mixorder's with more registers as long as it spills many."""
    original(self)
    while _is_ours(self) and (limit := self.triton_meta.get(LIMIT, 0)) in LARGER:
        # Words of 4 bytes.
        if max((getattr(launcher, "n_spills", 0) or 0 for launcher in self.launchers), default=0) <= 12:
            return
        self.triton_meta[LIMIT] = LARGER[limit]
        _recompile(self, self.compile_results[-1].config)
        self.launchers = []
        original(self)


def _loaded_with_fewer_stages(original: Function, self: Any) -> None:
    """The same, and compile with one stage less as long as it asks for too much shared memory."""

    def fitting(self: Any) -> Any:
        while True:
            try:
                return original(self)
            except RuntimeError as error:
                config = self.compile_results[-1].config
                if not _is_ours(self) or "OutOfResources" not in str(error) or config.num_stages < 2:
                    raise
            fewer = copy.deepcopy(config)
            fewer.num_stages -= 1
            if "NUM_STAGES" in fewer.kwargs:
                fewer.kwargs["NUM_STAGES"] = fewer.num_stages
            _recompile(self, fewer)

    _loaded(fitting, self)


def _is_ours(tuner: Any) -> bool:
    return bool(tuner.fn.__name__.startswith(PREFIX))


def _recompile(tuner: Any, config: Any) -> None:
    """With another config, or other entries of `triton_meta`."""
    if tuner.fn.fn is None:  # compiled in another process, which returns only the result
        tuner.fn = tuner._reload_kernel().fn
    tuner.compile_results = [tuner._precompile_config(config)]
