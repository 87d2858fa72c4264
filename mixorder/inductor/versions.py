"""Private torch API that differs between versions. No other module of mixorder tests for a version.

Each function names the versions that its branches are for, and detects features, not version numbers.
Imports torch inside functions only: `mixorder.options` is loaded while Inductor is loading.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.fx
    from torch._inductor.custom_graph_pass import CustomGraphPass

ConfigEntrySpec = tuple[str, Any, "bool | str | None"]
"""Name, default (its type is the type of the option), default set by the environment or None."""


def add_config_entries(
    config: ModuleType, specs: Iterable[ConfigEntrySpec], forced: Mapping[str, Any]
) -> None:
    """Add the entries that `config` does not have yet, as if its source declared them. `forced`: values by
    name that no assignment changes."""
    from torch.utils._config_module import _Config, _ConfigEntry

    takes_name = "name" in inspect.signature(_ConfigEntry.__init__).parameters  # 2.13, not 2.11
    new = [spec for spec in specs if spec[0] not in config._config]
    for name, default, env_default in new:
        declared = _Config(default=default, value_type=type(default))
        entry = _ConfigEntry(declared, name) if takes_name else _ConfigEntry(declared)
        if env_default is not None:
            entry.env_value_default = env_default
        if name in forced:
            entry.env_value_force = forced[name]
        config._config[name] = entry
    if new:
        _forget_config_caches()


def _forget_config_caches() -> None:
    """Drop the config's cached hash and dictionaries, which do not have the new entries.

    2.11 keeps one dirty flag. 2.13 keeps caches per context: replacing the variables drops those of
    every thread; a dirty flag would reach only this thread. Tested by
    test_options.py::test_entries_added_late_reach_hash_and_dicts.
    """
    import torch._inductor.config as config

    if "_is_dirty" in config._bypass_keys:
        setattr(config, "_is_dirty", True)  # noqa: B010  the type of a module has no such attribute
    for name in ("_hash_cache_var", "_get_dict_dirty_keys_var", "_get_dict_cache_var"):
        if name in config._bypass_keys:
            setattr(config, name, ContextVar(f"{config.__name__}.{name}", default=None))


def realize_threshold(config: ModuleType, what: str) -> int:
    """The option `realize_<what>_threshold`. 2.13 has the defaults of two under other names, 2.11 has not."""
    limit: int | None = getattr(config, f"realize_{what}_threshold")
    return getattr(config, f"_realize_{what}_threshold_default") if limit is None else limit


def name_triton_tools() -> None:
    """Set torch's own ptxas and libdevice for Triton, as Inductor does before its first compile in a process:
    they are part of the keys of Triton's cache. 2.11 sets no libdevice; few builds have a ptxas. Inductor
    does it only once, and the environment may have been restored since then."""
    from torch._inductor.runtime import compile_tasks

    for name in ("_set_triton_ptxas_path", "_set_triton_libdevice_path"):
        if set_path := getattr(compile_tasks, name, None):
            getattr(set_path, "__wrapped__", set_path)()


def append_graph_pass(user: Any, ours: CustomGraphPass) -> Any:
    """A value for `config.post_grad_custom_post_pass` that runs the user's passes, then ours.

    A list where Inductor takes one (2.13 on), else one pass made of both (2.11).
    """
    from torch._inductor import custom_graph_pass

    split = getattr(custom_graph_pass, "get_custom_graph_passes", None)
    if split is not None:
        return [*split(user), ours]
    return ours if user is None else _chain(user, ours)


def mutation_analysis(triton_kernel_wrap: ModuleType) -> str:
    """The function that finds what a Triton kernel reads and writes; before 2.13, what it writes."""
    newer = "identify_accessed_tensors"
    return newer if hasattr(triton_kernel_wrap, newer) else "identify_mutated_tensors"


# Settings that promise bits, with their defaults: the same for a sample in any batch (2.13), eager's order of
# additions (2.14), zeros with eager's sign (2.14), and small numbers as eager has them (2.13).
_PROMISING = {
    "batch_invariant": False,
    "numerics": "default",
    "strict_signed_zero": False,
    "eager_numerics.disable_ftz": False,
}


def promises_bits(config: ModuleType) -> str:
    """A setting of Inductor's that promises results bit for bit, which only its own kernels keep, and its
    value; empty if none is on."""
    for path, default in _PROMISING.items():
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        if value not in (None, default):
            return f"{path}={value!r}"
    return ""


@functools.cache
def mixes_wide_rows() -> bool:
    """Whether Inductor's own mix-order reduction takes fewer than two rows a column: 2.15, not 2.14."""
    from torch._inductor.scheduler import MixOrderReduction

    return "sympy.Ge(nrow, ncol * 2)" not in inspect.getsource(MixOrderReduction)


def loads_with_less(autotuner: type) -> bool:
    """Whether Inductor compiles a kernel that asks for too much shared memory again without pipelining
    (from 2.13), instead of raising (2.11)."""
    return hasattr(autotuner, "compile_by_disabling_pipelining")


def versions() -> list[str]:
    """The versions that compile a kernel: part of the key of a measurement."""
    import torch
    import triton

    return [torch.__version__, triton.__version__, str(torch.version.cuda), str(torch.version.hip)]


def package_versions(*names: str) -> dict[str, str]:
    """The version of each package, by name; `not installed` where there is none. Imports none of them."""
    from importlib import metadata

    import mixorder

    installed = {}
    for name in names:
        try:
            installed[name] = mixorder.__version__ if name == "mixorder" else metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def _chain(first: Any, second: CustomGraphPass) -> CustomGraphPass:
    """One pass that runs two. Inductor passes `is_inference` to passes of the inference-aware class."""
    from torch._inductor import custom_graph_pass

    aware = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
    base = custom_graph_pass.CustomGraphPass
    if aware is not None and isinstance(first, aware):
        base = aware

    class Chain(base):  # type: ignore[misc, valid-type]
        def __call__(self, graph: torch.fx.Graph, **is_inference: bool) -> None:
            first(graph, **is_inference)
            second(graph)

        def uuid(self) -> Any | None:
            """None if `first` has no uuid."""
            get_uuid = getattr(first, "uuid", None)
            first_id = get_uuid() if get_uuid is not None else None
            return None if first_id is None else (first_id, second.uuid())

    return Chain()


# The Triton that each torch is built against. These pairs are tested (docs/supported.md).
TESTED = {"2.11": "3.6.0", "2.12": "3.7.1", "2.13": "3.7.1", "2.14": "3.8.0", "2.15": "3.9.0"}
OLDEST, NEWEST = next(iter(TESTED)), next(reversed(TESTED))


def release(version: str) -> str:
    """`2.13` of `2.13.0+cpu`; the version itself if it has another form."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else version


def older(version: str, reference: str) -> bool:
    """Whether a version's release is before the reference's; False where that is unknown."""
    numbers = [[int(n) for n in release(v).split(".") if n.isdigit()] for v in (version, reference)]
    return len(numbers[0]) == 2 and numbers[0] < numbers[1]


@functools.cache
def unsupported() -> str:
    """Why mixorder has to stay off with this torch; empty if it is supported."""
    import torch

    if not older(torch.__version__, OLDEST):
        return ""
    return f"torch {torch.__version__} is not supported, {OLDEST} is the oldest that is"


def install_triton(torch_version: str) -> str:
    """The command that installs the Triton that was tested with this torch."""
    tested = TESTED.get(release(torch_version))
    return f"pip install triton=={tested}" if tested else "pip install triton"


@functools.cache
def deals_from_last() -> bool:
    """Whether Triton spreads threads over the dims of a load from the last one on, where none of them is
    contiguous in memory. 3.6 begins at the first one (`getOrderFromContiguity`)."""
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
