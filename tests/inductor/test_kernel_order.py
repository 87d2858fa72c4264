from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._inductor.memory import FreeableInputBuffer
from torch._inductor.scheduler import SchedulerNode

from mixorder.inductor import kernel_order


@dataclass(eq=False, repr=False)
class Kernel:
    """A stand-in for a scheduler node and its result: `reads` are kernels, or names of the graph's inputs."""

    name: str
    size: int = 0
    reads: list = field(default_factory=list)
    returned: bool = False
    over: str = ""  # the input in whose memory it writes

    def __post_init__(self):
        waits = {r for r in self.reads if isinstance(r, Kernel)}
        self.mpi_node = SimpleNamespace(pred_nodes=waits)

    def get_outputs(self):
        return [self]

    def get_name(self):
        return self.name

    def get_nodes(self):
        return [self]

    def used_or_aliased_buffer_names(self):
        return {self.name, *(getattr(read, "name", read) for read in self.reads)}

    def get_mutations(self):
        return [self.over] if self.over else []


def tensors(order, inputs):
    """From what `compute_memory_timeline` would have."""
    found = []
    for source in [*inputs, *order]:
        readers = [n for n in order if source in n.reads]
        made = isinstance(source, Kernel)
        start = order.index(source) if made else 0
        last = max([start, *map(order.index, readers)])
        size = source.size if made else inputs[source]
        buffer = source if made else FreeableInputBuffer(source)
        buffer.mpi_buffer = SimpleNamespace(succ_nodes=readers)
        end = -1 if made and source.returned else last
        found.append(
            SimpleNamespace(buffer=buffer, size_alloc=size, size_free=size, start_step=start, end_step=end)
        )
    return kernel_order.tensors(order, found)


def peak(order, inputs):
    return max(kernel_order.held_at(order, tensors(order, inputs)))


def lowered(order, inputs):
    return kernel_order.lowered(order, tensors(order, inputs))


def test_of_orders_with_the_same_peak_the_one_that_holds_less_is_taken():
    inputs = {"logits": 100, "saved": 10}
    first = Kernel("first", 50, ["logits"])
    weight = Kernel("weight", 20, ["logits"], returned=True)
    rest = [Kernel("next", 1, [first])]
    rest += [Kernel("last", 1, [rest[0], "saved"], returned=True)]
    early, late = [first, weight, *rest], [first, *rest, weight]
    assert peak(early, inputs) == 180 > peak(late, inputs) == 161
    heavy = Kernel("heavy", 200, [rest[1]], returned=True)  # later than all, and more than all before
    held = tensors([*late, heavy], inputs)
    for orders in ([[*early, heavy], [*late, heavy]], [[*late, heavy], [*early, heavy]]):
        order = kernel_order.least(orders, held)
        assert max(kernel_order.held_at(order, held)) == min(
            max(kernel_order.held_at(kernel_order.lowered(one, held), held)) for one in orders
        )
        assert order.index(weight) == 1


def test_of_orders_with_the_same_peak_the_one_that_holds_less_beside_a_library_is_taken():
    """A bias' gradient is summed before the next convolution's backward, which needs memory that no estimate
    has: not behind it, though other kernels than that one would have less beside them."""
    inputs = {"saved": 300, "activation": 100}
    gradient = Kernel("gradient", 100, ["saved"])
    bias = Kernel("bias", 1, [gradient], returned=True)
    small = [Kernel(f"small{i}", returned=True) for i in range(9)]
    partial = Kernel("partial", 30, ["x"])
    convolution = Kernel("convolution", 100, ["activation"], returned=True)
    last = Kernel("last", 1, [partial], returned=True)
    early = [gradient, bias, partial, *small, convolution, last]
    late = [gradient, convolution, bias, *small, partial, last]
    held = tensors(early, inputs | {"x": 0})
    assert peak(early, inputs | {"x": 0}) == peak(late, inputs | {"x": 0}) == 500
    for orders in ([early, late], [late, early]):
        assert kernel_order.least(orders, held) == late
        assert kernel_order.least(orders, held, {convolution}) == early


def test_a_copy_waits_until_others_have_freed_what_they_read():
    inputs = {"saved": 60, "logits": 100}
    copy = Kernel("copy", 100, ["logits"])
    product = Kernel("product", 5, [copy], returned=True)
    free = Kernel("free", 10, ["saved"], returned=True)
    assert peak([copy, product, free], inputs) == 260
    order = lowered([copy, product, free], inputs)
    assert [n.name for n in order] == ["free", "copy", "product"]
    assert peak(order, inputs) == 210


def test_a_result_is_made_later_where_it_is_read_after_the_peak():
    early = Kernel("early", 50, returned=True)
    large = Kernel("large", 100, ["x"])
    sum_ = Kernel("sum", 1, [large], returned=True)
    order = lowered([early, large, sum_], {"x": 10})
    assert order.index(early) > order.index(large)
    assert peak(order, {"x": 10}) < peak([early, large, sum_], {"x": 10})


def test_many_large_tensors_do_not_hide_the_one_to_move():
    saved = [f"saved{i}" for i in range(30)]
    inputs = {"x": 64, "y": 200} | dict.fromkeys(saved, 100)
    grad = Kernel("grad", 64, ["y"])
    norm = Kernel("norm", 64, [grad])
    weight = Kernel("weight", 200, ["x"], returned=True)
    rest = Kernel("rest", 10, [grad, norm, *saved], returned=True)
    assert peak([grad, norm, weight, rest], inputs) == 3392
    assert peak(lowered([grad, norm, weight, rest], inputs), inputs) == 3328


def test_many_small_results_wait_behind_a_peak_of_two_kernels():
    """Gradients of embeddings are filled with zeros first, one by one, and a backward has many of them."""
    zeros = [Kernel(f"zeros{i}", 1) for i in range(100)]
    products = [Kernel("product", 300, ["x"])]
    products += [Kernel("gate", 300, [products[0]])]
    tables = [Kernel(f"table{i}", 0, [products[1], zero], returned=True) for i, zero in enumerate(zeros)]
    order = lowered([*zeros, *products, *tables], {"x": 300})
    assert peak([*zeros, *products, *tables], {"x": 300}) == 700
    assert peak(order, {"x": 300}) == 600


@pytest.mark.parametrize("returned", [False, True])
def test_an_input_that_is_written_over_is_held_while_the_result_is(returned):
    loss = Kernel("loss", 0, ["logits"], returned, over="logits")
    other = Kernel("other", 10, [loss])
    last = Kernel("last", 1, [other], returned=True)
    held = kernel_order.held_at([loss, other, last], tensors([loss, other, last], {"logits": 100}))
    assert held[:3] == [100, 110, 111 if returned else 11]


def test_nothing_moves_where_nothing_is_gained():
    one = Kernel("one", 10, ["x"])
    two = Kernel("two", 10, [one], returned=True)
    assert lowered([one, two], {"x": 5}) == [one, two]


def test_what_a_loop_writes_over_an_operand_counts_once(monkeypatch):
    monkeypatch.setattr(kernel_order, "_is_loops", lambda node: node.name == "loops")
    loops = Kernel("loops", 100, ["x"], returned=True)
    other = Kernel("other", 100, ["x"], returned=True)
    assert peak([loops], {"x": 100}) == 100
    assert peak([other], {"x": 100}) == 200


def test_what_both_loops_of_a_kernel_read_makes_room_for_one_result(monkeypatch):
    """A gate's backward: both gradients are made of both operands. Seen in Inductor's code: one lies in the
    memory of an operand, the other takes memory of its own."""
    monkeypatch.setattr(kernel_order, "_is_loops", lambda node: True)

    class Buffer(Kernel):
        @property
        def mpi_buffer(self):
            return SimpleNamespace(succ_nodes=[kernel] if self.name in ("x", "y") else [])

    first, second = Buffer("first", 100, ["x", "y"]), Buffer("second", 100, ["x", "y"])
    kernel = Buffer("kernel")
    monkeypatch.setattr(Buffer, "get_nodes", lambda self: [first, second])
    monkeypatch.setattr(Buffer, "get_outputs", lambda self: [first, second])
    order = [Kernel("x", 100), Kernel("y", 100), kernel]
    info = [(Buffer("x"), 0, 2), (Buffer("y"), 1, 2), (first, 2, -1), (second, 2, -1)]
    timeline = [
        SimpleNamespace(buffer=b, size_alloc=100, size_free=100, start_step=s, end_step=e) for b, s, e in info
    ]
    found = kernel_order.tensors(order, timeline)
    assert kernel_order.held_at(order, found)[:3] == [100, 200, 300]


@pytest.mark.parametrize("template", [False, True])
def test_loops_are_kernels_that_inductor_generates(template):
    class Node(SchedulerNode):
        def __init__(self):
            pass

        def is_template(self):
            return template

    assert kernel_order._is_loops(Node()) is not template
    assert not kernel_order._is_loops(SimpleNamespace())


@st.composite
def graphs(draw):
    inputs = {f"i{n}": draw(st.integers(0, 9)) for n in range(draw(st.integers(1, 4)))}
    order = []
    for n in range(draw(st.integers(1, 9))):
        reads = draw(st.lists(st.sampled_from([*inputs, *order]), max_size=3, unique=True))
        order.append(Kernel(f"k{n}", draw(st.integers(0, 9)), reads, draw(st.booleans())))
    return order, inputs


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_any_order_is_valid_and_takes_no_more(graph):
    order, inputs = graph
    found = lowered(order, inputs)
    assert sorted(n.name for n in found) == sorted(n.name for n in order)
    for i, node in enumerate(found):
        assert node.mpi_node.pred_nodes <= set(found[:i])
    assert peak(found, inputs) <= peak(order, inputs)
