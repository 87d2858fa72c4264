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
from torch_names import is_private, paths

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
        signature = inspect.signature(function)
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
USED: dict[str, Rely] = {
    "torch._dispatch.python.enable_python_dispatcher": type,
    "torch._dynamo.utils.counters": dict,
    "torch._dynamo.config": ModuleType,
    "torch._dynamo.config.compiled_autograd": bool,
    "torch._functorch.config": ModuleType,
    "torch._functorch.config.patch": called(0, "enable_autograd_cache"),
    "torch._guards.detect_fake_mode": called(1),
    "torch._guards.TracingContext": type,
    "torch._guards.TracingContext.try_get": called(0),
    "torch._higher_order_ops.triton_kernel_wrap": ModuleType,
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table": ANYTHING,
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.add_constant_args": called(1),
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.add_kernel": called(1),
    "torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.get_kernel": called(1),
    "torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_functional": called(
        0, "kernel_idx", "constant_args_idx", "grid", "tma_descriptor_metadata", "kwargs", "tensors_to_clone"
    ),
    "torch._inductor.async_compile.AsyncCompile": type,
    "torch._inductor.async_compile.AsyncCompile.process_pool": called(0),
    "torch._inductor.async_compile.AsyncCompile.use_process_pool": called(0),
    "torch._inductor.async_compile.AsyncCompile.wait_pool_ready": called(1),
    "torch.amp.autocast_mode._enter_autocast": called(0),
    "torch._inductor.codecache.PyCodeCache": type,
    "torch._inductor.codecache.PyCodeCache.load": called(1),
    "torch._inductor.codegen.common.CSEVariable": called(3),
    "torch._inductor.codegen.simd.SIMDScheduling": type,
    "torch._inductor.codegen.simd.SIMDScheduling._codegen_mix_order_reduction": called(3),
    "torch._inductor.codegen.triton": ModuleType,
    "torch._inductor.codegen.triton.TritonKernel": type,
    "torch._inductor.codegen.triton.TritonKernel.codegen_body": called(1),
    "torch._inductor.codegen.triton.TritonOverrides": type,
    "torch._inductor.codegen.triton.texpr": called(1),
    "torch._inductor.codegen.triton.triton_compute_type": called(1),
    "torch._inductor.compile_fx.compile_fx": called(2, "inner_compile"),
    "torch._inductor.compile_fx.compile_fx_inner": called(2),
    "torch._inductor.config": ModuleType,
    "torch._inductor.config.__name__": str,
    "torch._inductor.config._bypass_keys": Set,
    "torch._inductor.config._config": dict,
    "torch._inductor.config.comprehensive_padding": bool,
    "torch._inductor.config.deterministic": bool,
    "torch._inductor.config.emulate_precision_casts": bool,
    "torch._inductor.config.use_fast_math": bool,
    "torch._inductor.config.padding_alignment_bytes": int,
    "torch._inductor.config.padding_stride_threshold": int,
    "torch._inductor.config.cpp_wrapper": bool,
    "torch._inductor.config.max_autotune": bool,
    "torch._inductor.config.max_autotune_gemm": bool,
    "torch._inductor.config.triton.cudagraphs": bool,
    "torch._inductor.config.triton.mix_order_reduction": bool,
    "torch._inductor.config.triton.use_block_ptr": bool,
    "torch._inductor.config.triton.use_tensor_descriptor": bool,
    "torch._inductor.config.force_disable_caches": bool,
    "torch._inductor.config.patch": called(1),
    "torch._inductor.config.post_grad_custom_post_pass": ANYTHING,
    "torch._inductor.config.save_config_portable": called(0),
    "torch._inductor.custom_graph_pass": ModuleType,
    "torch._inductor.custom_graph_pass.CustomGraphPass": type,
    "torch._inductor.dtype_propagation.DtypePropagationOpsHandler": called(0),
    "torch._inductor.compile_fx._recursive_post_grad_passes": called(1, "is_inference"),
    "torch._inductor.compile_fx.fake_tensor_prop": called(2),
    "torch._inductor.fx_passes.post_grad.post_grad_passes": called(1, "is_inference"),
    "torch._inductor.fx_passes.post_grad.view_to_reshape": called(1),
    "torch._inductor.fx_utils.get_node_storage": called(1),
    "torch._inductor.graph.GraphLowering": called(1, "shape_env"),
    "torch._inductor.inductor_prims.prepare_softmax_online": ANYTHING,
    "torch._inductor.ir": ModuleType,
    "torch._inductor.ir.BaseView": type,
    "torch._inductor.ir.ExternKernel": type,
    "torch._inductor.ir.ExternKernel.copy_input": called(1),
    "torch._inductor.ir.FixedLayout": type,
    "torch._inductor.ir.FlexibleLayout": type,
    "torch._inductor.ir.MultiOutput": type,
    "torch._inductor.ir.MultiOutputLayout": type,
    "torch._inductor.ir.MutableBox": type,
    "torch._inductor.ir.NonOwningLayout": type,
    "torch._inductor.ir.Pointwise": called(0, "device", "dtype", "inner_fn", "ranges"),
    "torch._inductor.ir.Pointwise.create": called(0, "device", "dtype", "inner_fn", "ranges"),
    "torch._inductor.ir.Reduction.default_accumulator": called(2),
    "torch._inductor.ir.ReinterpretView": called(0, "data", "layout"),
    "torch._inductor.ir.StorageBox": type,
    "torch._inductor.ir.as_storage_and_layout": called(1, "freeze", "exact_strides"),
    "torch._inductor.ir.is_storage_and_layout": called(1),
    "torch._inductor.ir.TensorBox": type,
    "torch._inductor.ir.is_contiguous_strides_for_shape": called(2),
    "torch._inductor.loop_body.MemoryUsageType": type,
    "torch._inductor.loop_body.MemoryUsageType.STORE_REDUCTION": ANYTHING,
    "torch._inductor.lowering.fallbacks": Set,
    "torch._inductor.lowering.lowerings": dict,
    "torch._inductor.memory": ModuleType,
    "torch._inductor.memory.FreeableInputBuffer": type,
    "torch._inductor.memory.compute_memory_timeline": called(3),
    "torch._inductor.memory.get_freeable_input_buf": called(2),
    "torch._inductor.memory.prepare_planning_info": called(5),
    "torch._inductor.ops_handler.DefaultHandler": called(0),
    "torch._inductor.runtime.cache_dir_utils.cache_dir": called(0),
    "torch._inductor.runtime.cache_dir_utils.triton_cache_dir": called(1),
    "torch._inductor.runtime.compile_tasks": ModuleType,
    "torch._inductor.runtime.compile_tasks._set_triton_ptxas_path": called(0),
    "torch._inductor.runtime.triton_helpers": ModuleType,
    "torch._inductor.runtime.triton_helpers.libdevice": ANYTHING,
    "torch._inductor.scheduler": ModuleType,
    "torch._inductor.scheduler.FusedSchedulerNode": type,
    "torch._inductor.scheduler.GroupedSchedulerNode": called(2),
    "torch._inductor.scheduler.MixOrderReduction": type,
    "torch._inductor.scheduler.MixOrderReduction.get_numel_rnumel": called(1),
    "torch._inductor.scheduler.MixOrderReduction.is_contiguous_node": called(1),
    "torch._inductor.scheduler.NopKernelSchedulerNode": type,
    "torch._inductor.scheduler.SchedulerNode": type,
    "torch._inductor.utils.IndentedBuffer": called(0),
    "torch._inductor.utils._type_of": called(1),
    "torch._inductor.utils.fresh_cache": called(0),
    "torch._inductor.utils.upcast_compute_type": called(1),
    "torch._inductor.virtualized.OpsValue": called(1),
    "torch._inductor.virtualized.V": ANYTHING,
    "torch._inductor.virtualized.V.fake_mode.shape_env.backed_var_to_val": dict,
    "torch._inductor.virtualized.V.get_ops_handler": called(0),
    "torch._inductor.virtualized.V.graph.current_node": ANYTHING,
    "torch._inductor.virtualized.V.graph.graph_outputs": Perhaps(called(0)),  # once a graph is lowered
    "torch._inductor.virtualized.V.graph.never_reuse_buffers.add": Perhaps(called(1)),
    "torch._inductor.virtualized.V.graph.sizevars.simplify_with_ranges": called(2),
    "torch._inductor.virtualized.V.graph.sizevars.stride_vars": called(2),
    "torch._inductor.virtualized.V.set_fake_mode": called(1),
    "torch._inductor.virtualized.V.set_graph_handler": called(1),
    "torch._inductor.virtualized.V.set_kernel_handler": called(1),
    "torch._inductor.virtualized.V.set_ops_handler": called(1),
    "torch._inductor.virtualized.ops": ANYTHING,
    "torch._inductor.virtualized.ops.and_": called(2),
    "torch._inductor.virtualized.ops.constant": called(2),
    "torch._inductor.virtualized.ops.ge": called(2),
    "torch._inductor.virtualized.ops.index_expr": called(2),
    "torch._inductor.virtualized.ops.load": called(2),
    "torch._inductor.virtualized.ops.lt": called(2),
    "torch._inductor.virtualized.ops.masked": called(3),
    "torch._inductor.virtualized.ops.where": called(3),
    "torch._library.utils.get_layout_constraint_tag": called(1),
    "torch._logging.trace_structured": called(1, "metadata_fn", "payload_fn", "expect_trace_id"),
    "torch._ops.HigherOrderOperator": type,
    "torch._ops.OpOverload": type,
    "torch._prims_common.dtype_to_type": called(1),
    "torch._prims_common.is_non_overlapping_and_dense_or_false": called(1),
    "torch._prims_common.make_contiguous_strides_for": called(1),
    "torch._subclasses.fake_tensor.DataDependentOutputException": type,
    "torch._subclasses.fake_tensor.DynamicOutputShapeException": type,
    "torch._subclasses.fake_tensor.FakeTensor": called(3),
    "torch._subclasses.fake_tensor.FakeTensorMode": called(0),
    "torch._subclasses.fake_tensor.unset_fake_temporarily": called(0),
    "torch.utils._config_module._Config": called(0, "default", "value_type"),
    "torch.utils._config_module._ConfigEntry": type,
    "torch.utils._config_module._ConfigEntry.__init__": (called(3), called(2)),  # 2.13, 2.11
    "torch.utils._pytree.tree_leaves": called(1),
    "torch.utils._pytree.tree_map_only": called(3),
    "torch.utils._sympy.functions.FloorDiv": type,
    "torch.utils._sympy.functions.Max": type,
    "torch.utils._sympy.functions.Min": type,
    "torch.utils._sympy.functions.Mod": type,
    "torch.utils._sympy.functions.ModularIndexing": type,
    "torch.utils._sympy.numbers.int_oo": ANYTHING,
    "torch.utils._sympy.symbol.SymT": type,
    "torch.utils._sympy.symbol.SymT.UNBACKED_INT": ANYTHING,
    "torch.utils._sympy.symbol.symbol_is_type": called(2),
    "torch.utils._sympy.value_ranges.ValueRanges": called(2),
    "torch.utils._sympy.value_ranges.ValueRanges.unknown": called(0),
    "torch.utils._sympy.value_ranges.bound_sympy": called(2),
    "torch.utils._triton.has_triton": called(0),
    "triton.runtime.interpreter._get_np_dtype": called(1),
    "triton.runtime.interpreter._patch_lang": called(1),
    "triton.runtime.interpreter._patch_lang_tensor": called(2),
}
# What is reached through objects, or by a name in a text; of functions that are wrapped, the names of the
# first parameters, since torch may give them by name.
REACHED: dict[str, Rely] = {
    "torch._TorchCompileInductorWrapper.apply_options": wrapped(1, "options"),
    "torch._higher_order_ops.triton_kernel_wrap.generate_ttir": ANYTHING,
    "torch._higher_order_ops.triton_kernel_wrap.identify_accessed_tensors": Perhaps(called(3)),
    "torch._higher_order_ops.triton_kernel_wrap.identify_mutated_tensors": Perhaps(called(3)),
    "torch._inductor.codegen.triton.TritonOverrides.to_dtype": called(2, "src_dtype", "use_compute_types"),
    "torch._inductor.codegen.triton.TritonKernel.dense_size_list": called(1),
    "torch._inductor.codegen.triton.TritonKernel.partial_accumulate": wrapped(
        1, "name", "reduction_type", "val"
    ),
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
    "torch._inductor.graph.GraphLowering.run_node": wrapped(2),
    "torch._inductor.codegen.common.CSE.generate": called(3, "dtype", "shape"),
    "torch._inductor.ir.ComputedBuffer._split_size": ANYTHING,
    "torch._inductor.ir.ComputedBuffer.get_default_sizes_body.clear_cache": called(1),
    "torch._inductor.ir.ComputedBuffer.get_reduction_type": called(1),
    "torch._inductor.ir.ComputedBuffer.simplify_and_reorder": called(1),
    "torch._inductor.ir.ComputedBuffer.with_original_inner_fn": called(1),
    "torch._inductor.ir.ConcatKernel.can_realize_into_without_copy": wrapped(1, "dst"),
    "torch._inductor.ir.ConcatKernel.realize_into": wrapped(2),
    "torch._inductor.ir.Layout.is_contiguous": called(1),
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
    "torch._inductor.scheduler.FusedMixOrderReductions.sub_node_can_fuse": wrapped(1, "node1", "node2"),
    "torch._inductor.scheduler.MixOrderReduction.can_fuse": wrapped(0, "node1", "node2"),
    "torch._inductor.scheduler.BaseSchedulerNode.get_operation_names": called(1),
    "torch._inductor.scheduler.BaseSchedulerNode.is_extern": called(1),
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


def names_in_the_folder() -> set[str]:
    trees = (ast.parse(path.read_text()) for path in FOLDER.glob("*.py"))
    return {path for tree in trees for path in paths(tree) if is_private(path)}


def test_the_table_has_what_the_folder_has() -> None:
    assert set(USED) == names_in_the_folder()


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
@pytest.mark.parametrize("table", [USED, REACHED], ids=["used", "reached"])
def test_torch_has_what_the_table_says(table: dict[str, Rely]) -> None:
    assert [path for path, rely in table.items() if not holds(path, rely)] == []


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
