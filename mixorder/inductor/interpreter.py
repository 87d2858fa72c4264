"""Run a rewritten graph without a GPU, with its kernels in the Triton interpreter.

`TRITON_INTERPRET=1` must be set before `triton` is first imported. The interpreter has no `libdevice`; this
maps the functions that Inductor's op printer calls onto NumPy-backed equivalents.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types as types_module
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from . import frontend, versions
from .config import inductor_config
from .wrapping import Function, wrap

Pass = Callable[[Graph], object]
Assembly = Callable[[str, list[Any]], list[Any] | None]
"""The results of a piece of inline assembly, given as text, on NumPy arrays; None if it is unknown."""


def backend(ours: Pass | None, assembly: Assembly) -> Callable[..., Any]:
    """A `torch.compile` backend: Inductor's graph (AOTAutograd, decompositions, post-grad passes and `ours`
    after the user's), run node by node on CPU tensors with interpreted kernels.

    Raises RuntimeError if `TRITON_INTERPRET` is not set.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("set TRITON_INTERPRET=1 before triton is imported")
    return functools.partial(frontend.compile_with, inner_compile_of(ours, assembly))


def prepare(assembly: Assembly) -> None:
    """Patch into Triton's interpreter what mixorder's kernels need and it lacks. Idempotent."""
    from torch._inductor.runtime import triton_helpers
    from triton.runtime import interpreter

    # Generated kernels import `libdevice` from Inductor's helpers.
    triton_helpers.libdevice = _NumpyLibdevice()
    # Compiled kernels have no overflow checks; they take a fifth of the interpreter's time.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    for path, wrapper in (
        ("InterpreterBuilder.create_inline_asm", functools.partial(_inline_asm, assembly)),
        ("InterpreterBuilder.cast_impl", _cast_as_a_gpu),
        ("InterpreterBuilder.create_fp_to_fp", _cast_as_a_gpu),
        ("InterpreterBuilder.create_splat", _splat),
        ("InterpreterBuilder.get_all_ones_value", _all_ones),
        ("ReduceOps.generic_reduce", _reduce_by_halves),
        ("_patch_lang_tensor", _patch_tensor),
        ("_patch_lang", _patch_language_once),
    ):
        wrap(interpreter, path, wrapper)


def inner_compile_of(ours: Pass | None, assembly: Assembly) -> frontend.InnerCompile:
    """Runs a graph node by node, with `ours` after the user's passes and interpreted kernels."""

    def inner_compile(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
        prepare(assembly)
        passes = inductor_config.post_grad_custom_post_pass
        if ours is not None:
            passes = versions.append_graph_pass(passes, ours)
        with frontend.faking(example_inputs), inductor_config.patch(post_grad_custom_post_pass=passes):
            frontend.with_strides(gm, example_inputs)
            frontend.with_graphs_inside(gm, is_inference=bool(kwargs.get("is_inference", False)))
        gm.graph.lint()
        gm.recompile()
        frontend.report_strides(frontend.stated_strides(gm.graph))
        return frontend.run_by_node(gm)

    return inner_compile


class _NumpyLibdevice:
    """`libdevice` for the interpreter: each function is NumPy's equivalent, on the tensor's data."""

    _NUMPY_NAMES = {
        "nearbyint": "rint",
        "llrint": "rint",
        "pow": "power",
        "fabs": "abs",
    }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import numpy

        if name == "rsqrt":
            return self._lifted(lambda x: 1 / numpy.sqrt(x))
        if name == "erf":
            import math

            return self._lifted(numpy.vectorize(math.erf, otypes=[float]))
        return self._lifted(getattr(numpy, self._NUMPY_NAMES.get(name, name)))

    @staticmethod
    def _lifted(function: Callable[..., Any]) -> Callable[..., Any]:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        def call(*args: Any) -> Any:
            first = args[0]
            data = function(*(a.handle.data for a in args)).astype(first.handle.data.dtype)
            return tl.core.tensor(TensorHandle(data, first.handle.dtype), first.type)

        return call


def _inline_asm(
    assembly: Assembly,
    original: Function,
    self: Any,
    text: str,
    constraints: str,
    values: list[Any],
    types: list[Any],
    pure: bool,
    pack: int,
) -> Any:
    """Triton's interpreter has no inline assembly: add the few pieces that mixorder's kernels use."""
    from triton.runtime.interpreter import TensorHandle

    results = assembly(text, [v.data for v in values])
    if results is None:
        return original(self, text, constraints, values, types, pure, pack)
    if any(v.data.ndim and v.data.size % pack for v in values):  # as Triton's verifier asks
        raise ValueError(f"elements are no multiple of the {pack} that a call has: {text}")
    handles = [TensorHandle(r, t.scalar) for r, t in zip(results, types, strict=True)]
    return types_module.SimpleNamespace(get_result=handles.__getitem__)


def _cast_as_a_gpu(original: Function, self: Any, src: Any, dst_type: Any, *mode: Any) -> Any:
    """Cast between bfloat16 or fp8 and other floats as torch does, but what is beyond the range of fp8 to the
    largest number, as GPUs with instructions for fp8 do. The interpreter (triton 3.7) truncates to bfloat16,
    and loses the carry where rounding to fp8 reaches the next power of two. It reads NaN and infinity of fp8
    as numbers, has no cast between fp8 and float64, and gives other values for subnormal bfloat16."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    narrow = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    floats = {**narrow, tl.float16: torch.float16, tl.float32: torch.float32, tl.float64: torch.float64}
    source, target = src.dtype.scalar, dst_type.scalar
    if not {source, target} & {*narrow} or not {source, target} <= {*floats}:
        return original(self, src, dst_type, *mode)
    values = torch.from_numpy(numpy.array(src.data))
    if source in narrow:
        values = values.view(narrow[source]).to(torch.float32)
    dtype = floats[target]
    if dtype.itemsize == 1:  # clamp keeps NaN
        values = values.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    values = values.to(dtype)
    if target in narrow:
        values = values.view(torch.uint8 if dtype.itemsize == 1 else torch.uint16)
    return TensorHandle(values.numpy(), target)


def _splat(original: Function, self: Any, ret_ty: Any, arg: Any) -> Any:
    """Keep the bool dtype of a scalar comparison that is broadcast to a tile: the interpreter turns it into
    an integer, which triton 3.9 does not accept as a mask."""
    result = original(self, ret_ty, arg)
    if arg.data.dtype == bool:
        result.data = result.data.astype(bool)
    return result


def _all_ones(original: Function, self: Any, of: Any) -> Any:
    """Return the largest value for "all ones" of an unsigned integer: NumPy 2 does not accept -1 for it."""
    import numpy
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    dtype = _get_np_dtype(of)
    if not numpy.issubdtype(dtype, numpy.unsignedinteger):
        return original(self, of)
    return TensorHandle(numpy.full(1, numpy.iinfo(dtype).max, dtype), of.scalar)


def _patch_tensor(original: Function, tensor: Any, scope: Any) -> None:
    """Convert loop bounds to int: they are arrays of one element, which NumPy 2.4 no longer converts."""
    original(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_language_once(original: Function, function: Any) -> Any:
    """Replace the builtins of `triton.language` only once. The interpreter does so at every call of a jitted
    function from a kernel (triton 3.6 to 3.9), which is half the time of small kernels."""
    import triton.language as tl

    if any(tl.core.is_builtin(lang.load) for lang in _languages(function)):
        return original(function)
    return types_module.SimpleNamespace(restore=lambda: None)


@functools.cache
def _languages(function: Any) -> list[Any]:
    """The modules of the language that a kernel's module names."""
    import triton.language as tl

    return [lang for lang in (tl, tl.core) if any(lang is v for v in function.__globals__.values())]


def _reduce_by_halves(_: Function, self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Reduce with a custom combine function in a tree of neighbouring pairs, all pairs at once: the
    interpreter calls it for one element after the other."""
    import numpy
    import triton.language as tl

    rank = inputs[0].handle.data.ndim
    values, axis = self.unravel(inputs, self.axis)
    dtypes = [value.dtype for value in values]
    elements = [numpy.moveaxis(value.handle.data, axis, 0) for value in values]
    while len(elements[0]) > 1:
        assert len(elements[0]) % 2 == 0
        pairs = [array[side::2] for side in (0, 1) for array in elements]
        operands = [self.to_tensor(d, t) for d, t in zip(pairs, dtypes * 2, strict=True)]
        result = self.combine_fn.fn(*operands)
        results = result if isinstance(result, (tuple, tl.tuple)) else (result,)
        elements = [r.handle.data for r in results]
    joined = [array[0] for array in elements]
    if self.keep_dims:
        kept = range(rank) if self.axis is None else axis
        joined = [numpy.expand_dims(data, kept) for data in joined]
    return [self.to_tensor(d, t) for d, t in zip(joined, dtypes, strict=True)]
