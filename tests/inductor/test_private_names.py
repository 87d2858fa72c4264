"""Every private name of torch that `mixorder/inductor` has is there, and takes what it is given.

A new version of torch that fails here says which module of `mixorder/inductor` it concerns.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._higher_order_ops import triton_kernel_wrap
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch_names import calls, is_private, paths

import mixorder.inductor
from mixorder import plugin
from mixorder.inductor import hooks, lowerings
from mixorder.inductor.tensors import FakeTensorMode
from mixorder.inductor.versions import mutation_analysis

FOLDER = Path(mixorder.inductor.__file__).parent


@dataclass(frozen=True)
class Takes:
    """A function that is called with so many arguments by position, and these by name."""

    positional: int
    names: tuple[str, ...] = ()
    wrapped: bool = False  # torch calls it: with these first, and others

    def holds(self, function: Callable[..., Any]) -> bool:
        try:
            signature = inspect.signature(function)
        except ValueError:  # one in C++ does not say
            return True
        bind = signature.bind_partial if self.wrapped else signature.bind
        try:
            bind(*range(self.positional), **dict.fromkeys(self.names))
        except TypeError:
            return False
        first = list(signature.parameters)[self.positional :][: len(self.names)]
        return not self.wrapped or tuple(first) == self.names


@dataclass(frozen=True)
class Perhaps:
    """What some of the versions lack that are supported; `versions.py` asks for it."""

    rely: Takes


Rely = Takes | Perhaps | type | tuple[Takes, ...]
"""A function, any of several, an instance of a type, or what is not on all versions."""


def called(positional: int, *names: str) -> Takes:
    return Takes(positional, names)


def wrapped(positional: int, *names: str) -> Takes:
    return Takes(positional, names, wrapped=True)


ANYTHING = object

# What the folder hands on, or calls through another name.
HANDED_ON: dict[str, Rely] = {
    "torch.amp.autocast_mode._enter_autocast": called(0),
    "torch._inductor.compile_fx._recursive_post_grad_passes": called(1, "is_inference"),
    "torch._inductor.fx_passes.post_grad.post_grad_passes": called(1, "is_inference"),
    "torch._inductor.ir.Pointwise": called(0, "device", "dtype", "inner_fn", "ranges"),
    "torch._inductor.ops_handler.DefaultHandler": called(0),
    "torch._inductor.runtime.cache_dir_utils.triton_cache_dir": called(1),
    "torch._inductor.utils.IndentedBuffer": called(0),
    "torch._inductor.utils.fresh_cache": called(0),
    "torch._inductor.utils.upcast_compute_type": called(1),
    "torch._prims_common.dtype_to_type": called(1),
    "torch._prims_common.is_non_overlapping_and_dense_or_false": called(1),
    "torch._prims_common.make_contiguous_strides_for": called(1),
    "torch._subclasses.fake_tensor.FakeTensorMode": called(0),
    "torch.utils._config_module._ConfigEntry.__init__": (called(3), called(2)),
    "torch.utils._pytree.tree_leaves": called(1),
    "torch.utils._pytree.tree_map_only": called(3),
    "torch.utils._triton.has_triton": called(0),
    "triton.runtime.interpreter._patch_lang": called(1),
    "triton.runtime.interpreter._patch_lang_tensor": called(2),
}
# What is reached through objects, or by a name in a text; of functions that are wrapped, the names of the
# first parameters, since torch may give them by name.
REACHED: dict[str, Rely] = {
    "torch._inductor.config._bypass_keys": Set,
    "torch._inductor.lowering.fallbacks": Set,
    "torch._inductor.lowering.lowerings": dict,
    "torch._TorchCompileInductorWrapper.apply_options": wrapped(1, "options"),
    "torch._higher_order_ops.triton_kernel_wrap.generate_ttir": ANYTHING,
    "torch._higher_order_ops.triton_kernel_wrap.identify_accessed_tensors": Perhaps(called(3)),
    "torch._higher_order_ops.triton_kernel_wrap.identify_mutated_tensors": Perhaps(called(3)),
    "torch._inductor.codegen.triton.TritonOverrides.to_dtype": called(2, "src_dtype", "use_compute_types"),
    "torch._inductor.codegen.wrapper.PythonWrapperCodegen.define_kernel": wrapped(
        1, "kernel_name", "kernel_body"
    ),
    "torch._inductor.compile_fx._InProcessFxCompile.codegen_and_compile": wrapped(1, "gm"),
    "torch._inductor.compile_fx._recursive_joint_graph_passes": wrapped(1),
    "torch._inductor.compile_fx.compile_fx": wrapped(
        0, "model_", "example_inputs_", "inner_compile", "config_patches"
    ),
    "torch._inductor.config.coordinate_descent_tuning": bool,
    "torch._inductor.config.max_autotune": bool,
    "torch._inductor.config.max_autotune_pointwise": bool,
    "torch._inductor.custom_graph_pass.CustomGraphPass.__call__": called(2),
    "torch._inductor.custom_graph_pass.CustomGraphPass.uuid": called(1),
    "torch._inductor.custom_graph_pass.get_custom_graph_passes": Perhaps(called(1)),
    "torch._inductor.graph.GraphLowering.set_current_device": called(2),
    "torch._inductor.graph.GraphLowering.__init__": wrapped(1, "gm"),
    "torch._inductor.graph.GraphLowering.run_node": wrapped(2),
    "torch._inductor.ir.ConcatKernel.can_realize_into_without_copy": wrapped(1, "dst"),
    "torch._inductor.ir.ConcatKernel.realize_into": wrapped(2),
    "torch._inductor.ir.TensorBox.get_device": called(1),
    "torch._inductor.ir.TensorBox.get_dtype": called(1),
    "torch._inductor.ir.TensorBox.get_size": called(1),
    "torch._inductor.ir.TensorBox.make_loader": called(1),
    "torch._inductor.memory.estimate_peak_memory": wrapped(3),
    "torch._inductor.memory.reorder_for_peak_memory": wrapped(5),
    "torch._inductor.ops_handler.DefaultHandler._default": called(4),
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner._create_compile_options": wrapped(
        1, "cfg", "compile_meta"
    ),
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner._make_launchers": Perhaps(called(1)),
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner._precompile_config": Perhaps(called(2)),
    "torch._inductor.dependencies.ReadWrites.rename": called(2),
    "torch._inductor.scheduler.BaseSchedulerNode.decide_inplace_update": wrapped(1),
    "torch._inductor.scheduler.BaseSchedulerNode.is_template": called(1),
    "torch._inductor.tiling_utils.extract_normalized_read_writes": wrapped(0, "node"),
    "torch.fx.Node._rename": called(2),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv._maybe_evaluate_static": called(
        2, "size_oblivious", "var_to_range"
    ),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_expr": wrapped(
        1, "orig_expr", "hint", "fx_node", "size_oblivious", "fallback_value"
    ),
    "torch.fx.experimental.symbolic_shapes.ShapeEnv.guard_or_defer_runtime_assert": wrapped(
        1, "orig_expr", "msg", "fx_node"
    ),
    "torch._inductor.utils.IndentedBuffer.do_indent": called(1),
    "torch._inductor.utils.IndentedBuffer.getvalue": called(1),
    "torch._inductor.utils.IndentedBuffer.indent": called(1),
    "torch._inductor.utils.IndentedBuffer.writeline": called(2),
}


TREES = {path.name: ast.parse(path.read_text()) for path in FOLDER.glob("*.py")}
NAMES = sorted({path for tree in TREES.values() for path in paths(tree) if is_private(path)})


def test_the_table_has_what_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrapped before each compile, and not only where torch is loaded."""
    asked: list[str] = []
    monkeypatch.setattr(hooks, "wrap", lambda owner, path, _: asked.append(f"{owner.__name__}.{path}"))
    hooks._wrap_inductor.__wrapped__(plugin.plugin())
    assert len(asked) > 4 and set(asked) <= {
        path for path, rely in REACHED.items() if isinstance(rely, Takes) and rely.wrapped
    }


@pytest.fixture(scope="module")
def graph() -> Iterator[None]:
    """What Inductor only has while it lowers a graph."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        like = torch.empty(2, 3)
    with lowerings.context(like):
        yield


def found(path: str) -> Any:
    """The object at a dotted path; AttributeError if there is none."""
    parts = path.split(".")
    at = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if isinstance(at, ModuleType) and not hasattr(at, part):
            try:
                at = importlib.import_module(".".join(parts[:i]))
            except ModuleNotFoundError as error:
                raise AttributeError(path) from error
        else:
            at = getattr(at, part)
    return at


def holds(path: str, rely: Rely) -> bool:
    try:
        value = found(path)
    except AttributeError:
        return isinstance(rely, Perhaps)
    rely = rely.rely if isinstance(rely, Perhaps) else rely
    if isinstance(rely, type):
        return isinstance(value, rely)
    return any(one.holds(value) for one in (rely if isinstance(rely, tuple) else (rely,)))


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    "table", [dict.fromkeys(NAMES, ANYTHING), HANDED_ON, REACHED], ids=["used", "handed on", "reached"]
)
def test_torch_has_what_is_used(table: dict[str, Rely]) -> None:
    assert [path for path, rely in table.items() if not holds(path, rely)] == []


@pytest.mark.usefixtures("graph")
def test_functions_take_what_they_are_given() -> None:
    """`versions.py` has calls for other versions."""
    given = (one for name, tree in TREES.items() if name != "versions.py" for one in calls(tree))
    found = [(path, called(*how)) for path, how in given if is_private(path)]
    assert len(found) > 50
    assert [one for one in found if not holds(*one)] == []


@pytest.mark.parametrize(
    ("path", "rely"),
    [
        ("torch._inductor.config.no_such_option", bool),
        ("torch._inductor.config.emulate_precision_casts", str),
        ("torch._inductor.no_such_module.function", called(1)),
        ("torch._inductor.utils._type_of", called(2)),
        ("torch._inductor.utils._type_of", called(1, "no_such_name")),
        ("torch._inductor.utils._type_of", wrapped(0, "dtype")),
        ("torch._inductor.utils.fresh_cache", Perhaps(called(9))),
    ],
)
def test_what_torch_does_not_have_is_seen(path: str, rely: Rely) -> None:
    assert not holds(path, rely)


def test_one_analysis_of_kernels_is_there() -> None:
    assert callable(getattr(triton_kernel_wrap, mutation_analysis(triton_kernel_wrap)))
