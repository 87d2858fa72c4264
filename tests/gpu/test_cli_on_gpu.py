"""`mixorder.explain` and the commands on a GPU."""

import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import nn

import mixorder
from mixorder.cli import bench, doctor, tune
from mixorder.report import RegionRecord, collect


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(self.norm(x))


def factory() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(Block(512), Block(512), nn.RMSNorm(512)).bfloat16()
    return model, torch.randn(4096, 512, dtype=torch.bfloat16, requires_grad=True)


def test_explain_finds_what_a_compile_fuses() -> None:
    with torch.device("cuda"):
        model, x = factory()
    report = mixorder.explain(model, options={"mixorder_strict": True})(x)
    assert report.on_gpu and report.device.name == torch.cuda.get_device_name()
    assert all(not norm.reason for norm in report.norms) and len(report.norms) == 3
    assert x.grad is None and all(p.grad is None for p in model.parameters())
    torch._dynamo.reset()
    with collect() as records:
        compiled = torch.compile(model, options={"mixorder": True, "fx_graph_cache": False})
        compiled(x).sum().backward()
    fused = [record for record in records if isinstance(record, RegionRecord)]
    assert list(map(seen, fused)) == list(map(seen, report.regions))


def seen(record: RegionRecord) -> tuple[object, ...]:
    return record.space, record.inner, record.outer, record.schedule, record.traffic.total


def run(command: object, *args: str) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        status = command.main(args)  # type: ignore[attr-defined]
    return status, out.getvalue()


def test_bench() -> None:
    status, out = run(bench, f"{__name__}:factory", "--steps", "5")
    lines = {line.split("  ")[1]: line.split()[-2:] for line in out.splitlines() if line.startswith("  ")}
    assert status == 0, out
    assert lines["regions fused"][0] == "0" and int(lines["regions fused"][1]) >= 3
    assert all(float(ms) > 0 for ms in lines["step, ms"])


def test_tune() -> None:
    status, out = run(tune, f"{__name__}:factory")
    assert status == 0, out
    assert "tuned: " in out and "candidates" in out


def test_doctor() -> None:
    status, out = run(doctor)
    assert status == 0, out
    assert torch.cuda.get_device_name() in out and "gradients on the GPU are as accurate" in out


def test_explain_command() -> None:
    code = [sys.executable, "-m", "mixorder", "explain", "test_cli_on_gpu:factory"]
    done = subprocess.run(code, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Norm modules in a region: 3 of 3" in done.stdout
    assert torch.cuda.get_device_name() in done.stdout and "without a GPU" not in done.stdout
