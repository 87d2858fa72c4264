"""docs/adopt.md: each of its lines, taken from the page, turns mixorder on in its framework.

Each runs in a process of its own, on the CPU, with kernels in Triton's interpreter. The script around a line
makes a model and data, and trains two steps. Lines of shell that launch a script are the page's, too; what
needs no such line goes on in forks of one process that has imported torch and its compiler.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import python_after

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adopt.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))

BEFORE = """
import torch
import torch._inductor.config as config
from torch import nn
from torch._dynamo.utils import counters

config.mixorder_interpret, config.mixorder_min_numel = True, 0  # the CPU, and tiny


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.down = nn.RMSNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        return x + self.down(self.norm(x))


class Model(nn.Module):
    def __init__(self, blocks=0):
        super().__init__()
        self.up, self.layers = nn.Linear(16, 64), nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 4)

    def forward(self, x, labels):
        x = self.up(x)
        for block in self.layers:
            x = block(x)
        return {"loss": nn.functional.cross_entropy(self.head(self.norm(x)), labels)}


def train(model, backward=torch.Tensor.backward):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        backward(model(x, labels)["loss"])
        optimizer.step()


def fused():
    '''How many regions the compiles since the last call have.'''
    count = counters["mixorder"]["fused_regions"]
    counters.clear()
    torch._dynamo.reset()
    return count


torch.manual_seed(0)
model = Model()
x, labels = torch.randn(16, 16), torch.arange(16) % 4
"""
AFTER = '\nprint("fused", fused())\n'


def lines(section: str, language: str) -> list[str]:
    """The code of a section of the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
}


def counts(output: str) -> list[int]:
    """The numbers of fused regions that a script has printed."""
    return [int(count) for count in re.findall(r"^fused (\d+)$", output, re.MULTILINE)]


def run(folder: Path, script: str, launch: str, **env: str) -> list[int]:
    """What a script counts; `launch` is a line of shell that starts it."""
    (folder / "train.py").write_text(script)
    shell = {**os.environ, **ENVIRONMENT}
    shell["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), shell["PATH"]])
    shell["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [shell.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-c", launch], env={**shell, **env}, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return counts(done.stdout)


def missing_of(*packages: str) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = missing_of(*packages)
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def plain_torch() -> str:
    compiled, in_place, mode, everywhere = lines("Plain torch", "python")
    script = [BEFORE, compiled, "train(compiled)", AFTER]
    script += ["model = Model()", in_place, "train(model)", AFTER]
    script += ["model = Model()", mode, "train(compiled)", AFTER]
    script += ["assert not config.mixorder  # without a line it is off"]
    script += ["model = Model()", everywhere, "train(torch.compile(model))", AFTER]
    return "\n".join(script)


def accelerate_plugin() -> str:
    (prepare,) = lines("accelerate", "python")
    return "\n".join([BEFORE, prepare, "train(model, accelerator.backward)", AFTER])


TRAINER = """
from transformers import Trainer

args.max_steps, args.report_to = 2, []
data = [{"x": row, "labels": label} for row, label in zip(x, labels)]
Trainer(model, args, train_dataset=data).train()
"""


@needs("transformers", "accelerate")
def test_transformers(tmp_path: Path) -> None:
    (launch,) = lines("transformers Trainer", "bash")
    arguments = lines("transformers Trainer", "python")
    assert len(arguments) == 2 and "torch_compile_mode" in arguments[1]
    ways = [text for way in arguments for text in ("model = Model()", way, TRAINER, AFTER)]
    both = run(tmp_path, "\n".join([BEFORE, *ways]), launch, TORCHINDUCTOR_MIX_ORDER_REDUCTION="0")
    assert len(both) == 2 and min(both) > 0


@needs("accelerate")
def test_accelerate_by_its_launcher(tmp_path: Path) -> None:
    (launch,) = lines("accelerate", "bash")
    launch = launch.replace("accelerate launch", "python -m accelerate.commands.launch --cpu")
    prepare = "accelerator = Accelerator()\nmodel = accelerator.prepare(model)"
    script = "\n".join(
        [BEFORE, "from accelerate import Accelerator", prepare, "train(model, accelerator.backward)", AFTER]
    )
    (count,) = run(tmp_path, script, launch)
    assert count > 0


LIGHTNING = """
import lightning


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        return self.model(*batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = torch.utils.data.TensorDataset(x, labels)
module, loader = Module(), torch.utils.data.DataLoader(data, batch_size=32)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
"""


def lightning() -> str:
    (fit,) = lines("Lightning", "python")
    return "\n".join([BEFORE, LIGHTNING, fit, AFTER])


GROUP = """
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""


def fsdp2() -> str:
    (shard,) = lines("FSDP2, in your own training loop", "python")
    script = [BEFORE, GROUP, "model = Model(1)", shard, "train(model)", AFTER, "dist.destroy_process_group()"]
    return "\n".join(script)


SCRIPTS = {
    "plain torch": plain_torch,
    "accelerate": accelerate_plugin,
    "lightning": lightning,
    "fsdp2": fsdp2,
}
NEEDED = {"accelerate": "accelerate", "lightning": "lightning"}


@functools.cache
def found() -> dict[str, list[int]]:
    """What each script counts that is started by no line of the page."""
    names = [name for name in SCRIPTS if name not in NEEDED or not missing_of(NEEDED[name])]
    first = "import torch, torch._inductor.compile_fx"
    outputs = python_after(first, [SCRIPTS[name]() for name in names], **ENVIRONMENT)
    return dict(zip(names, map(counts, outputs), strict=True))


def test_plain_torch() -> None:
    assert len(found()["plain torch"]) == 4 and min(found()["plain torch"]) > 0


@needs("accelerate")
def test_accelerate_by_its_plugin() -> None:
    (count,) = found()["accelerate"]
    assert count > 0


@needs("lightning")
def test_lightning() -> None:
    (count,) = found()["lightning"]
    assert count > 0


def test_fsdp2() -> None:
    (count,) = found()["fsdp2"]
    assert count > 1  # the block's, and the norm's outside of it


TITAN = """
from types import SimpleNamespace

from torchtitan.config import CompileConfig
from torchtitan.distributed.compile import apply_compile

dims, model = SimpleNamespace(tp_enabled=False), Model(1)
apply_compile(model, compile_config=CompileConfig(enable=True), parallel_dims=dims)
train(model)
"""


@needs("torchtitan")
def test_torchtitan(tmp_path: Path) -> None:
    """The function that compiles a model's blocks; the launcher needs a GPU."""
    (launch,) = lines("torchtitan", "bash")
    variable = launch.split()[0]
    (count,) = run(tmp_path, BEFORE + TITAN + AFTER, f"{variable} python train.py")
    assert count > 0


def test_every_framework_of_the_table_has_a_section() -> None:
    listed = re.findall(r"^\| ([^|]+) \| [^|]+ \| (?:run|the function|not run)", PAGE, re.MULTILINE)
    assert len(listed) == 7
    assert {name.lower() for name in listed} <= {name.lower() for name in SECTIONS}
