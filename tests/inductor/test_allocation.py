from dataclasses import dataclass

from torch._inductor.ir import MultiOutput

from mixorder.inductor.allocation import unpacked


@dataclass(frozen=True)
class Reads:
    name: str


class Kernel:
    """A stand-in for a scheduler node. `takes`: it takes one of the results of what it reads."""

    def __init__(self, name, *reads, takes=False):
        self.name, self.unmet_dependencies = name, set(map(Reads, reads))
        self.node = MultiOutput.__new__(MultiOutput) if takes else None

    def get_outputs(self):
        return [self]

    def get_name(self):
        return self.name


def test_results_are_taken_right_behind_the_kernel_that_makes_them():
    """As long as one is not taken, the others are held: a convolution's gradient of its input by that of its
    weight, which only an optimizer reads."""
    nodes = [
        Kernel("convolution"),
        Kernel("input", "convolution", takes=True),
        Kernel("norm", "input"),
        Kernel("next", "norm"),
        Kernel("weight", "convolution", takes=True),
        Kernel("part", "weight", takes=True),
        Kernel("cast", "part"),
        Kernel("last of next", "next", takes=True),
    ]
    names = [one.name for one in unpacked(nodes)]
    assert names == ["convolution", "input", "weight", "part", "norm", "next", "last of next", "cast"]
