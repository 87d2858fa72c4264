"""PyTorch's own samples of ops and modules as cases, each with a row sum and a column sum.

In: `op_db` and `module_db` of torch.testing, which come with torch and need expecttest. Out: `Case`s, which
are plain data, and of each its `Unit`s: a sample, and in which of the modes it stands beside reductions over
the rows and columns of the same tensor. Modes of a forward are "beside", the op on a tensor that is summed,
and "behind", the op on what a row's result makes of it; of a backward "layer" and "rms", the op beside such a
norm, and "through", behind one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = ("float32", "bfloat16", "int64", "bool", "float16", "int32", "uint8", "float64", "int16", "int8")
GROUPS = ("reductions", "norms", "losses", "modules")
ENLARGED = {2: (37, 24), 3: (9, 8, 24), 4: (5, 8, 6, 12)}  # shapes, by the number of dims
MOST_ENLARGED = 3
MOST_SAMPLES = 64  # that are looked at, of an op and a dtype

_LOSS = re.compile(r"loss|entropy|nll|kl_div|similarity|distance|\bdist$|pdist|cdist")
_NORM = re.compile(r"norm|soft(max|min)|local_response")
_REDUCTION = re.compile(
    r"sum|prod|mean|std|var|(^|[._])(max|min)$|aminmax|arg(max|min)|median|^mode$|quantile|trace$|trapz|trapezoid"
    r"|count|^(all|any)$|^(cov|corrcoef)$|cum(sum|prod|max|min)|kthvalue|vecdot|^(dot|vdot|mv|inner|isin)$"
)
# What draws random numbers, has no rows and columns, or is no reduction but for its name.
_EXCLUDED = re.compile(
    r"^(log_normal|normal|signal\.|linalg\.householder|cartesian_prod|_unsafe_masked|fmax|fmin|bincount|sparse)"
    r"|dropout|unpool|fractional|nuc$|einsum|linalg\.(matrix_rank|cond)|(max|min)\.binary|_scatter|scatter_"
)
_MODULES = re.compile(r"Norm|Loss|[sS]oft(max|min)")
# Which of a tensor's dims another one has: all, trailing ones, channels, rows, labels. The first that fits.
_PARTS_OF_A_SHAPE: tuple[Callable[[tuple[int, ...]], tuple[int, ...]], ...] = (
    lambda s: s,
    lambda s: s[1:],
    lambda s: s[2:],
    lambda s: s[1:2],
    lambda s: s[-1:],
    lambda s: s[:1],
    lambda s: s[:1] + s[2:],
)
# Where a rounding of the input decides which element a gradient goes to, or whether any gets one: the maximum
# that forward has kept need not be among the values that backward computes again.
_JUMPS = re.compile(
    r"(?<!soft)(max|min)|median|mode|quantile|kthvalue|l1|margin|hinge|huber|count|dist|nan|prod|normalize"
    r"|(^|linalg\.(vector_|matrix_)?|masked\.|re)norm($|\.)"
)


@dataclasses.dataclass(frozen=True)
class Case:
    """An op (name and variant) or module, a dtype by its name, and whether gradients are compared."""

    group: str
    name: str
    dtype: str
    backward: bool

    def __str__(self) -> str:
        return f"{self.name}/{self.dtype}/{'backward' if self.backward else 'forward'}"


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where a tensor of the sample stands among its arguments."""

    index: int


@dataclasses.dataclass
class Unit:
    """One sample in a mode. `call(*args, **kwargs)` with `tensors` for the slots; `main`: of them, the tensor
    whose rows and columns are summed. `leaves`: how the tensors of the result are reached, and examples of
    them. `extra`: scales, shifts and weights that the mode adds."""

    label: str
    mode: str
    call: Callable[..., Any]
    args: Any
    kwargs: Any
    tensors: list[Tensor]
    main: int
    leaves: list[tuple[str, Tensor]] = dataclasses.field(default_factory=list)
    extra: list[Tensor] = dataclasses.field(default_factory=list)

    @property
    def module(self) -> nn.Module | None:
        return self.call if isinstance(self.call, nn.Module) else None

    @property
    def x(self) -> Tensor:
        return self.tensors[self.main]


def name_of(info: Any) -> str:
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


@functools.cache
def infos() -> dict[str, tuple[str, Any]]:
    """By name, the group and the description of each op and module that is taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    found = {name_of(op): (group, op) for op in op_db if (group := _group(op))}
    modules = {f"nn.{m.module_cls.__name__}": ("modules", m) for m in module_db}
    return found | {name: one for name, one in modules.items() if _MODULES.search(name)}


def _group(op: Any) -> str | None:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    name = name_of(op)
    plain = op.name.removeprefix("masked.").removeprefix("linalg.")
    if isinstance(op, ReductionOpInfo):
        return "norms" if "norm" in plain else "reductions"
    pointwise = isinstance(op, (BinaryUfuncInfo, UnaryUfuncInfo))
    if pointwise or _EXCLUDED.search(name) or _EXCLUDED.search(op.name):
        return None
    for group, words in (("losses", _LOSS), ("norms", _NORM), ("reductions", _REDUCTION)):
        if words.search(plain):
            return group
    return None


def cases(device: str) -> list[Case]:
    """All of them, in an order in which those that follow one another have little in common."""
    kind = "cuda" if device == "cuda" else "cpu"
    found = []
    for name, (group, info) in infos().items():
        for backward in (False, True):
            found += [Case(group, name, dtype, backward) for dtype in _dtypes(info, kind, backward)]
    random.Random(0).shuffle(found)
    return found


def _dtypes(info: Any, kind: str, backward: bool) -> list[str]:
    if hasattr(info, "module_cls"):
        supported = (
            set(info.supported_dtypes(kind)) if hasattr(info, "supported_dtypes") else set(info.dtypes)
        )
        differentiable = info.supports_gradgrad or True
    else:
        supported = set(info.supported_backward_dtypes(kind) if backward else info.supported_dtypes(kind))
        differentiable = info.supports_autograd
    names = [d for d in DTYPES if getattr(torch, d) in supported]
    if not backward:
        return names
    return [d for d in names if getattr(torch, d).is_floating_point] if differentiable else []


def units(case: Case, device: str, samples: int) -> list[Unit]:
    """Samples of a case that have rows and columns and that eager computes, each in a mode; other dtypes of
    the same op get other samples. The last ones are enlarged."""
    torch.manual_seed(0)
    turn = DTYPES.index(case.dtype)
    candidates = [u for u in _samples(case, device) if _usable(u)]
    if not candidates:
        return []
    modes = _modes(case)
    step = max(1, len(candidates) // samples)
    order = [candidates[(turn + i * step) % len(candidates)] for i in range(len(candidates))]
    order = list({id(u): u for u in (*order, *candidates)}.values())
    plain = list(itertools.islice((u for u in order if _probed(u, case.backward)), samples))
    for i, unit in enumerate(plain):
        unit.mode = modes[(turn + i) % len(modes)]
    found = [*plain, *_large(case, order, modes)]
    for unit in found:
        unit.label = f"{unit.label} {unit.mode}"
        _give_extra(unit)
    return found


def _large(case: Case, order: Sequence[Unit], modes: Sequence[str]) -> list[Unit]:
    """An enlarged sample for each size of result (rows, columns, all of it, one number): one of every size in
    a mode, one of them in all modes."""
    sizes: dict[int, Unit] = {}
    for large in filter(None, map(_enlarged, order)):
        if _probed(large, case.backward):
            sizes.setdefault(large.leaves[0][1].numel(), large)
    best = sorted(sizes.values(), key=lambda u: (u.leaves[0][1].numel() in (0, 1), u.x.dim()))
    if not best:
        return []
    turn = DTYPES.index(case.dtype)
    others = best[MOST_ENLARGED - 1 :]
    best = [*best[: MOST_ENLARGED - 1], *others[turn % max(1, len(others)) :][:1]]
    one = best[turn % len(best)]
    if not case.backward:
        # What is no floating-point number is taken into a region only behind one of its results.
        return [dataclasses.replace(u, mode="behind") for u in best] + [
            dataclasses.replace(one, mode="beside")
        ]
    made = [dataclasses.replace(u, mode=modes[(turn + i) % len(modes)]) for i, u in enumerate(best)]
    used = {u.mode for u in made if u.label == one.label}
    return made + [dataclasses.replace(one, mode=mode) for mode in modes if mode not in used]


def _modes(case: Case) -> tuple[str, ...]:
    if not case.backward:
        return ("beside", "behind")
    smooth = not _JUMPS.search(case.name)
    return ("layer", "rms", "through") if smooth else ("layer", "rms")


def _samples(case: Case, device: str) -> list[Unit]:
    _, info = infos()[case.name]
    make = _of_module if hasattr(info, "module_cls") else _of_op
    return list(itertools.islice(make(info, case, device), MOST_SAMPLES))


def _of_op(op: Any, case: Case, device: str) -> Iterator[Unit]:
    kind = "cuda" if device == "cuda" else "cpu"
    for i, sample in enumerate(op.sample_inputs(kind, getattr(torch, case.dtype), case.backward)):
        yield _unit(f"sample {i}", op.op, (sample.input, *sample.args), sample.kwargs)


def _of_module(info: Any, case: Case, device: str) -> Iterator[Unit]:
    kind, dtype = "cuda" if device == "cuda" else "cpu", getattr(torch, case.dtype)
    for training in (True, False) if info.train_and_eval_differ else (True,):
        made = info.module_inputs_func(
            info, device=kind, dtype=dtype, requires_grad=case.backward, training=training
        )
        for i, one in enumerate(made):
            if one.forward_input is None:
                continue
            built = one.constructor_input
            module = info.module_cls(*built.args, **built.kwargs).to(kind, dtype).train(training)
            given = one.forward_input
            yield _unit(f"sample {i} {'train' if training else 'eval'}", module, given.args, given.kwargs)


def _unit(label: str, call: Any, args: Any, kwargs: Any) -> Unit:
    tensors: list[Tensor] = []

    def slotted(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach().requires_grad_(value.requires_grad))
            return Slot(len(tensors) - 1)
        if isinstance(value, dict):
            return {k: slotted(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(slotted, value))
        return value

    args, kwargs = slotted(tuple(args)), slotted(dict(kwargs))
    by_size = sorted(range(len(tensors)), key=lambda i: -tensors[i].numel() if _summed(tensors[i]) else 1)
    return Unit(label, "", call, args, kwargs, tensors, by_size[0] if by_size else -1)


def _summed(t: Tensor) -> bool:
    """Whether a tensor has several rows and columns."""
    if t.layout != torch.strided or t.is_complex() or t.dim() < 2:
        return False
    return t.shape[-1] > 1 and t.numel() > t.shape[-1]


def _usable(unit: Unit) -> bool:
    return (
        bool(unit.tensors)
        and _summed(unit.x)
        and not any(t.is_complex() or t.layout != torch.strided for t in unit.tensors)
    )


def filled(value: Any, tensors: Sequence[Tensor]) -> Any:
    """Arguments with tensors in their slots."""
    if isinstance(value, Slot):
        return tensors[value.index]
    if isinstance(value, dict):
        return {k: filled(v, tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(filled(v, tensors) for v in value)
    return value


def _probed(unit: Unit, backward: bool) -> bool:
    """Whether eager computes it, the same twice, and gives tensors; notes these."""
    if backward and not (unit.x.requires_grad and unit.x.is_floating_point()):
        return False
    found = []
    for _ in range(2):
        call = copy.deepcopy(unit.call) if unit.module else unit.call
        tensors = [t.detach().clone().requires_grad_(t.requires_grad) for t in unit.tensors]
        with warnings.catch_warnings(), torch.set_grad_enabled(backward), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            found.append(list(_leaves(call(*filled(unit.args, tensors), **filled(unit.kwargs, tensors)))))
    if len(found) < 2 or not found[0]:
        return False
    unit.leaves = [(path, t.detach()) for path, t in found[0]]
    pairs = zip(unit.leaves, found[1], strict=True)
    plain = all(t.layout == torch.strided and not t.is_complex() for _, t in unit.leaves)
    differentiable = any(t.requires_grad for _, t in found[0])
    return plain and (differentiable or not backward) and all(_same(a, b) for (_, a), (_, b) in pairs)


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.detach().nan_to_num())


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            yield from _leaves(one, f"{path}[{i}]")


def _enlarged(unit: Unit) -> Unit | None:
    """The same with more rows and columns, where every tensor has dims of `x`; so has what states a shape."""
    old = tuple(unit.x.shape)
    new = ENLARGED.get(len(old))
    if new is None or any(after < before for before, after in zip(old, new, strict=True)):
        return None  # a label might be beyond the last
    shapes = {tuple(f(old)): tuple(f(new)) for f in reversed(_PARTS_OF_A_SHAPE)}
    if any(tuple(t.shape) not in shapes and t.dim() for t in unit.tensors):
        return None
    generator = torch.Generator().manual_seed(1)

    def more(t: Tensor) -> Tensor:
        """Values of the same range: some of those there are, made smaller where that keeps the range."""
        if not t.dim() or not t.numel():
            return t
        places = torch.randint(t.numel(), shapes[tuple(t.shape)], generator=generator)
        values = t.detach().cpu().reshape(-1)[places]
        if t.is_floating_point():
            values = values * (0.5 + 0.5 * torch.rand(values.shape, generator=generator)).to(t.dtype)
        return values.to(t.device).requires_grad_(t.requires_grad)

    tails = {old[i:]: new[i:] for i in range(1, len(old))}
    args = tuple(tails.get(a, a) if type(a) in (tuple, torch.Size) else a for a in unit.args)
    return dataclasses.replace(
        unit, label=f"{unit.label} enlarged", args=args, tensors=[*map(more, unit.tensors)]
    )


def _give_extra(unit: Unit) -> None:
    """The scale of rows and the shift of columns that change nothing, and a norm's weight and bias."""
    if unit.mode in ("beside", "behind"):
        return
    x = unit.x.detach()
    generator = torch.Generator().manual_seed(2)
    weights = [1 + 0.1 * torch.randn(x.shape[-1], generator=generator) for _ in range(2)]
    made = [torch.ones(*x.shape[:-1], 1), torch.zeros(x.shape[-1]), *weights]
    unit.extra = [t.to(x.device, x.dtype).requires_grad_() for t in made]
