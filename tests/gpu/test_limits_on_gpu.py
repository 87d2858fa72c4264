"""Kernels that Triton rejects, or that the device has no room for: the compile goes on, and is right."""

import dataclasses
import warnings

import pytest
import torch
from gradients import case, exact, grads
from graphs import choosing, generating
from torch import nn
from torch._dynamo.utils import counters

OPTIONS = {"mixorder": True, "mixorder_min_numel": 0, "fx_graph_cache": False}
ROWS, COLS = 1000, 4096


def errors(options):
    """Of the gradients of a compiled LayerNorm, each relative to the largest."""
    module, x, dy = case(nn.LayerNorm, (ROWS, COLS), torch.float32)
    found = grads(torch.compile(module, options=options, dynamic=False), module, x, dy)
    truths = exact(module, x, dy)
    return [float((g - t).abs().max() / t.abs().max()) for g, t in zip(found, truths, strict=True)]


def broken(generate, *args):
    main, final = generate(*args)
    text = main.text.replace("tl.program_id", "tl.there_is_no_such_function", 1)
    assert text != main.text
    return dataclasses.replace(main, text=text), final


def test_a_kernel_that_triton_rejects_is_left_to_inductor(plan_with):
    plan_with(strategies=generating(broken))
    with pytest.warns(UserWarning, match="there_is_no_such_function"):
        assert max(errors(OPTIONS | {"mixorder_strict": False})) < 1e-5
    assert counters["mixorder"]["fused_regions"] == 0


def test_a_kernel_that_triton_rejects_raises_in_strict_mode(plan_with):
    plan_with(strategies=generating(broken))
    with pytest.raises(Exception, match="there_is_no_such_function"):
        errors(OPTIONS | {"mixorder_strict": True})


def test_a_schedule_that_asks_for_too_much_shared_memory_runs_with_less(plan_with):
    """Prefetches of so many tiles take more than a multiprocessor has; nothing is then prefetched."""
    asked = []

    def greedy(choose, *args):
        schedule = choose(*args)
        asked.append(20 * schedule.tile_rows * schedule.lanes * 2 * 4)
        return schedule.changed(num_stages=20)

    plan_with(strategies=choosing(greedy))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*mixorder.*")
        assert max(errors(OPTIONS | {"mixorder_strict": True})) < 1e-5
    assert counters["mixorder"]["fused_regions"] == 1
    assert asked and min(asked) > torch.cuda.get_device_properties(0).shared_memory_per_block_optin
