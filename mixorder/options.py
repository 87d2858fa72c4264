"""The options: one frozen dataclass, registered as entries of `torch._inductor.config`.

In: Inductor's config module. Out: `Options`, validated. Each field below is the only declaration of
its option: name, type, default, environment variable and lower bound. Inductor's cache keys cover every
registered entry, so two more entries are registered: the hash of mixorder's source, and which inputs of a
graph are donated. Tunable parameters of a kernel are not options: they belong to its schedule.
"""

import functools
import hashlib
import os
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from mixorder.errors import warn_once
from mixorder.inductor import versions

SOURCE_HASH_KEY = "mixorder_source_hash"
DONATED_KEY = "mixorder_donated"
SWITCH = "MIXORDER"
SHARED = "TORCHINDUCTOR_MIX_ORDER_REDUCTION"
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class Options:
    """What the user asked of this compile."""

    enabled: bool = field(default=False, metadata={"env": SWITCH, "shared": SHARED, "key": "mixorder"})
    """Fuse mix-order reductions with mixorder. Inductor's own implementation is off then.

    If `MIXORDER` is not set, the variable of torch's own mix-order reduction decides. `MIXORDER=0` wins
    over what the code says."""

    split_size: int = field(default=0, metadata={"minimum": 0})
    """Rows a program accumulates before it writes one partial; 0 lets the heuristic choose."""

    autotune: bool = False
    """Time schedules of each region at compile time, on the GPU, and keep the fastest.

    Whatever its value, tuning is on if Inductor tunes (`max_autotune`, `max_autotune_pointwise` or
    `coordinate_descent_tuning`), and off if results have to be deterministic."""

    strict: bool = field(default=False, metadata={"env": "MIXORDER_STRICT"})
    """Raise on an internal error instead of warning and leaving the graph to Inductor."""

    min_numel: int = field(default=4096, metadata={"minimum": 0})
    """Regions with fewer elements (rows * columns) are not fused. For block-scaled casts, and for sums along
    one dim only, the threshold is 16 times as high (`schedule.predicted.check_size`)."""

    dump_dir: str = field(default="", metadata={"env": "MIXORDER_DUMP"})
    """A directory that gets one numbered text file per stage and region; empty for none."""

    interpret: bool = False
    """Accept CPU tensors, and run the kernels in the Triton interpreter (needs TRITON_INTERPRET=1). Slow."""

    @classmethod
    def current(cls) -> "Options":
        """The options that are set at this moment; ValueError on a value that is not allowed."""
        from mixorder.inductor.config import inductor_config

        register(inductor_config)
        return cls(**{f.name: _checked(f, getattr(inductor_config, config_key(f))) for f in fields(cls)})

    def as_config(self, donated: tuple[Any, ...] = ()) -> dict[str, Any]:
        """The same values as a patch for `torch._inductor.config`. `donated`: the inputs of a graph that its
        kernels may overwrite."""
        return {config_key(f): getattr(self, f.name) for f in fields(self)} | {DONATED_KEY: donated}


def config_key(option: Field[Any]) -> str:
    """Name of an option's entry in `torch._inductor.config`."""
    return option.metadata.get("key", f"mixorder_{option.name}")


def register(config: ModuleType) -> None:
    """Add an entry per option to Inductor's config module, and the other entries that its cache keys must
    cover. Idempotent."""
    entries = [(config_key(f), f.default, _from_env(f)) for f in fields(Options)]
    entries += [(SOURCE_HASH_KEY, source_hash(), None), (DONATED_KEY, (), None)]
    versions.add_config_entries(config, entries, {"mixorder": False} if switched_off() else {})


@functools.cache
def source_hash() -> str:
    """sha256 over every file that kernels depend on, Python and fitted numbers, in order of relative path."""
    root = Path(__file__).parent
    paths = [path for pattern in ("*.py", "*.json") for path in root.rglob(pattern)]
    files = {path.relative_to(root).as_posix(): path for path in paths}
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def variables(option: Field[Any]) -> list[tuple[str, str]]:
    """The environment variables of an option that are set, and their values; the first one decides."""
    names = (option.metadata.get("env"), option.metadata.get("shared"))
    return [(name, os.environ[name]) for name in names if name and os.environ.get(name)]


def understood(value: str) -> bool | None:
    """Whether a switch's value means on or off; None if neither."""
    word = value.strip().lower()
    return True if word in ON else False if word in OFF else None


def switched_off() -> bool:
    """Whether mixorder's own variable keeps it off, whatever the code says."""
    return understood(os.environ.get(SWITCH, "")) is False


def _from_env(option: Field[Any]) -> bool | str | None:
    """The default that the environment sets; None if it sets none."""
    for name, value in variables(option):
        if isinstance(option.default, str):
            return value
        if (switch := understood(value)) is not None:
            return switch
        warn_once(f"mixorder does not understand {name}={value!r}. Set it to one of {', '.join(ON + OFF)}.")
    return None


def _checked(option: Field[Any], value: Any) -> Any:
    """The value itself, or ValueError. Types are checked here, too: torch does so only in torch.compile."""
    expected = type(option.default)
    minimum = option.metadata.get("minimum")
    if type(value) is not expected or (minimum is not None and value < minimum):
        allowed = expected.__name__ if minimum is None else f"{expected.__name__} >= {minimum}"
        raise ValueError(f"option {config_key(option)!r} is {value!r}; allowed: {allowed}")
    return value
