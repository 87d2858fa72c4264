"""Subgraphs: an entry computes what its region computed, and a small model is traced."""

from pathlib import Path

import graphs
import pytest
import torch
from lab import corpus, harvest, measuring, subgraphs
from torch.fx import Graph, Interpreter, Node

from mixorder.errors import Decline, DeclineReason
from mixorder.region.region import Region


def entry_of(cut: subgraphs.Cut, outcome: str = "fused", family: str = "loops/tiny") -> corpus.Entry:
    key = corpus.structural_key(cut.inputs, cut.nodes, cut.outputs)
    places = [corpus.Place(family, "bf16", "backward", 1)]
    return corpus.Entry(key, **vars(cut), outcome=outcome, detail="", places=places)


def there_and_back(entry: corpus.Entry, folder: Path) -> corpus.Entry:
    corpus.save(folder / "corpus.jsonl.xz", [entry])
    (loaded,) = corpus.load(folder / "corpus.jsonl.xz")
    assert loaded == entry
    return loaded


def results_of(graph: Graph, given: dict[Node, torch.Tensor]) -> list[torch.Tensor]:
    """What a graph returns if some of its nodes have these values."""
    env = dict(given)
    interpreter = Interpreter(torch.fx.GraphModule({}, graph))
    for node in graph.nodes:
        if node.op == "call_function" and node not in env and all(a in env for a in node.all_input_nodes):
            interpreter.env = env
            env[node] = interpreter.run_node(node)
    return [env[arg] for arg in graphs.output_args(graph)]


def assert_same_results(region: Region, graph: Graph, entry: corpus.Entry) -> None:
    inputs = entry.tensors("cpu")
    expected = results_of(graph, dict(zip(region.inputs, inputs, strict=True)))
    with torch.no_grad():
        got = torch.compile(entry.module("cpu"), backend="aot_eager")(*inputs)
    assert all(one.isfinite().all() for one in got)
    for want in expected:
        assert any(
            one.shape == want.shape and one.stride() == want.stride() and torch.equal(one, want)
            for one in got
        )


def test_a_near_miss_is_without_reductions_that_a_region_has_taken(tmp_path: Path) -> None:
    graph = graphs.layer_norm_backward(64, 32)
    region = graphs.only(graph)
    told = Decline(DeclineReason.CYCLE, "")
    told.pair = (region.inner, region.outer)  # type: ignore[attr-defined]
    taken, other = region.outer
    taken.replace_all_uses_with(other)
    graph.erase_node(taken)
    entry = there_and_back(entry_of(harvest._found(told, graph)), tmp_path)
    assert len(entry.outer) == 1
    entry.module("cpu")(*entry.tensors("cpu"))
    with pytest.raises(subgraphs.NotKept):
        harvest._found(Decline(DeclineReason.CYCLE, ""), graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda: graphs.layer_norm_backward(64, 32),
        lambda: graphs.rms_norm_backward(64, 32),
        lambda: graphs.rope_backward(2, 16, 2, 32),
        lambda: graphs.pair_graph(64, 32),
    ],
    ids=["layer_norm", "rms_norm", "rope", "pair"],
)
def test_entry_computes_what_its_region_computed(make, tmp_path: Path) -> None:
    graph = make()
    region = graphs.only(graph)
    assert_same_results(region, graph, there_and_back(entry_of(subgraphs.of_region(region)), tmp_path))


def test_sizes_that_were_symbolic_are_stored_and_hinted(tmp_path: Path) -> None:
    spec = ((24, 32), torch.float32)
    graph = graphs.traced_rows(graphs.pair, spec, spec)
    entry = there_and_back(entry_of(subgraphs.of_region(graphs.only(graph))), tmp_path)
    assert entry.dynamic
    assert entry.inputs[0].shape == ["s0", 32]
    assert [tuple(x.shape) for x in entry.tensors("cpu")] == [(24, 32)] * len(entry.inputs)
    entry.module("cpu")(*entry.tensors("cpu"))


def masked(x: torch.Tensor, scale: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair that takes a root of one input, and gathers by another."""
    h = x[at] * (scale + 1e-6).rsqrt()
    return h - h.sum(-1, keepdim=True), h.sum(0)


def test_inputs_are_drawn_so_that_nothing_is_out_of_range() -> None:
    specs = (((16, 32), torch.float32), ((64, 1), torch.float32), ((64,), torch.int64))
    graph = graphs.traced(masked, *specs)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    cut = subgraphs.cut(nodes, graphs.output_args(graph), [], [])
    by_dtype = {(one.dtype, tuple(one.shape)): one for one in cut.inputs}
    assert by_dtype["int64", (64,)].bound == 16
    assert by_dtype["float32", (64, 1)].positive
    assert not by_dtype["float32", (16, 32)].positive
    entry = entry_of(cut)
    assert all(one.isfinite().all() for one in entry.module("cpu")(*entry.tensors("cpu")))


def several(x: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Three operators with several results each, of which a library computes one."""
    largest, where = x.max(-1)
    left, right = x.unbind(1)
    gradients = torch.ops.aten.convolution_backward(
        image, image, weight, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
    )
    return [largest, where, left + right.sum(0), gradients[0].sum(1)]


def test_what_a_library_returns_is_an_input() -> None:
    specs = (((16, 2), torch.float32), ((1, 2, 4, 4), torch.float32), ((2, 2, 1, 1), torch.float32))
    graph = graphs.traced(several, *specs)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    entry = entry_of(subgraphs.cut(nodes, graphs.output_args(graph), [], []))
    assert [(one.dtype, list(one.shape)) for one in entry.inputs] == [
        ("float32", [16, 2]),
        ("float32", [1, 2, 4, 4]),
    ]
    x, gradient = entry.tensors("cpu")
    found = entry.module("cpu")(x, gradient)
    for want in (*x.max(-1), x[:, 0] + x[:, 1].sum(), gradient.sum(1)):
        assert any(one.dtype == want.dtype and torch.equal(one, want) for one in found)


def test_the_page_on_duels_counts_what_the_files_have() -> None:
    root = Path(__file__).resolve().parents[2]
    page, data = " ".join((root / "docs/lab/duels.md").read_text().split()), root / "tools" / "data"
    entries = list(measuring.read([data / "corpus.jsonl.xz"]))
    families = {place["family"] for entry in entries for place in entry["places"]}
    assert f"corpus.jsonl.xz` has {len(entries):,} subgraphs of {len(families)} families" in page
    for name in ("duels", "duels_h100"):
        keys = [duel["key"] for duel in measuring.read([data / f"{name}.jsonl.xz"])]
        told = f"{len(keys):,} duels of {len(set(keys)):,} subgraphs"
        assert f"{name}.jsonl.xz` has {told}" in page
