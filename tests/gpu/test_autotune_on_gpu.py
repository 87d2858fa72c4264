"""Autotuning on a GPU: right gradients, a line that says what was gained, and seconds."""

import time

import gradients
import pytest
import torch
from gradients import as_exact, case, errors, exact, grads
from support.compilers import STRICT
from torch._inductor import config

from mixorder.report import RegionRecord, collect
from mixorder.tune import tuner
from mixorder.tune.search import MOST, Outcome

TUNED = STRICT | {"mixorder_autotune": True}
NORMS = ("rms", "layer")
pytestmark = pytest.mark.usefixtures("no_winners")


@pytest.fixture(autouse=True, scope="module")
def warm():
    """Start the compiler's workers before anything is timed."""
    module, x, dy = inputs(512, 64, torch.float32)
    grads(torch.compile(module, options=STRICT, dynamic=False), module, x, dy)


def inputs(rows, cols, dtype=torch.bfloat16, norm="rms"):
    return case(gradients.NORMS[norm], (rows, cols), dtype)


def compiled(module, x, dy, options=TUNED, dynamic=False):
    """Gradients from a fresh compile, and the records of what it fused."""
    torch._dynamo.reset()
    with collect() as records:
        found = grads(torch.compile(module, options=options, dynamic=dynamic), module, x, dy)
    assert all(isinstance(record, RegionRecord) for record in records)
    return found, records


def check(found, module, x, dy):
    """No worse against float64 than Inductor alone."""
    stock, _ = compiled(module, x, dy, {"mixorder": False})
    as_exact(found, stock, exact(module, x, dy), 1.05, 4 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("norm", NORMS)
def test_tuned_gradients_and_what_the_record_says(norm):
    module, x, dy = inputs(2048, 2048, norm=norm)
    started = time.perf_counter()
    found, (record,) = compiled(module, x, dy)
    seconds = time.perf_counter() - started
    tuning = record.planning.tuning
    assert tuning is not None and not tuning.from_cache
    assert 5 <= tuning.candidates <= MOST
    assert 1 < tuning.best_us <= tuning.heuristic_us < 1000
    assert 0 < tuning.seconds < 20 and seconds < 60
    print(f"{norm} 2048x2048 {tuning}, {record.schedule.launch}, {record.schedule.splits} programs")
    check(found, module, x, dy)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("rows", "cols", "dtype"),
    [
        (3, 64, torch.float32),
        (10_000, 100, torch.float32),
        (40_000, 256, torch.bfloat16),
        (2048, 8192, torch.bfloat16),
        (1024, 12288, torch.bfloat16),
    ],
)
def test_shapes(norm, rows, cols, dtype):
    module, x, dy = inputs(rows, cols, dtype, norm)
    found, (record,) = compiled(module, x, dy)
    assert record.planning.tuning is not None
    assert record.planning.tuning.seconds < 60  # alone 5 to 10; a dozen test processes share the processors
    check(found, module, x, dy)


def test_symbolic_rows_are_tuned_at_their_hint():
    module, x, dy = inputs(4096, 768, torch.float32)
    found, (record,) = compiled(module, x, dy, dynamic=True)
    assert record.planning.tuning is not None
    check(found, module, x, dy)


def test_the_users_random_numbers_are_left_alone():
    module, x, dy = inputs(2048, 1024)
    before = torch.cuda.get_rng_state()
    compiled(module, x, dy)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_every_schedule_that_may_win_computes_the_same():
    """Each candidate in turn, as if it were the fastest."""
    module, x, dy = inputs(5000, 768, torch.float32)
    _, (plain,) = compiled(module, x, dy, STRICT)
    timed = []

    class Noting(tuner.Bench):
        def __call__(self, candidates, reps):
            timed.extend(c for c in candidates if c not in timed)
            return super().__call__(candidates, reps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "Bench", Noting)
        compiled(module, x, dy)
    assert timed[0].schedule == plain.schedule
    truths = exact(module, x, dy)
    for candidate in timed[::4]:
        taken = Outcome(candidate, 2.0, 1.0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tuner, "search", lambda spaces, measure, taken=taken: taken)
            patch.setattr(tuner.config, "winners_folder", lambda: None)
            found, (record,) = compiled(module, x, dy)
        assert record.schedule == candidate.schedule
        assert max(errors(found, truths)) < 1e-5


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_under_torchs_modes(mode):
    """CUDA graphs are recorded after the compile, and so after the timing."""
    module, x, dy = inputs(2048, 1024)
    torch._dynamo.reset()
    with config.patch(TUNED), collect() as records:
        function = torch.compile(module, mode=mode, dynamic=False)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            found = [g.clone() for g in grads(function, module, x, dy)]
    assert [r.planning.tuning is not None for r in records] == [True]
    check(found, module, x, dy)


def test_no_room_for_a_second_set_of_tensors(monkeypatch):
    module, x, dy = inputs(2048, 1024)

    def no_room(*args, **kwargs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(tuner.Bench, "_made", no_room)
    found, (record,) = compiled(module, x, dy)
    assert record.planning.tuning is None
    check(found, module, x, dy)
