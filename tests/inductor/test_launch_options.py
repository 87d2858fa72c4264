"""What is said to Inductor of our kernels' launches, and a kernel that the device has no room for."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch._inductor.config as config

from mixorder.inductor import launch_options as launches
from mixorder.inductor.mutation_cache import PREFIX

NAME = f"{PREFIX}sum_0"
BODY = "@triton_heuristics.user_autotune(\n    triton_meta={'signature': {}},\n)\ndef kernel():\n    pass\n"


def defined(name: str, body: str) -> str:
    """The text that Inductor goes on with."""

    text: str = launches.defined(lambda self, name, body, gpu=True: body, None, name, body)
    return text


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize(
    ("name", "waits"),
    [
        (f"{PREFIX}sum_0", True),
        (f"{PREFIX}sum_0_3", True),  # as Inductor calls it
        (f"{PREFIX}sum_1_0", False),
        (f"{PREFIX}sum", False),
        ("triton_poi_fused_0", False),
    ],
)
def test_what_a_definition_says(
    name: str, waits: bool, emulate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "_options", {})
    launches.compile_with(NAME, waits=True, exact=False, registers=0)
    with config.patch(emulate_precision_casts=emulate):
        text = defined(name, BODY)
    meta = "triton_meta={"
    meta += "'launch_pdl': True, " if waits else ""
    meta += "'enable_fp_fusion': False, " if emulate and name.startswith(PREFIX) else ""
    assert text == BODY.replace("triton_meta={", meta)


def test_a_kernel_whose_products_are_rounded_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_options", {})
    launches.compile_with(NAME, waits=False, exact=True, registers=0)
    for name, exact in ((NAME, True), (f"{NAME}_3", True), (f"{PREFIX}sum_1", False)):
        assert ("'enable_fp_fusion': False, " in defined(name, BODY)) == exact


def test_a_kernel_whose_threads_have_few_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_options", {})
    launches.compile_with(NAME, waits=False, exact=False, registers=128)
    for name, limited in ((NAME, True), (f"{NAME}_3", True), (f"{PREFIX}sum_1", False)):
        text = defined(name, f"import triton\n\n{BODY}")
        assert ("triton_meta={'maxnreg': 128, " in text) == limited
        # A process that compiles it hands the limit on, even where torch loads no plugins there.
        assert ("\n    import mixorder\n" in text.partition("@triton_heuristics")[0]) == limited


class Tuner:
    """As much of 2.11's `CachingAutotuner` as is looked at: it has room for `fits` stages. `spills`: words
    that a kernel spills, by the most registers of a thread."""

    spills: ClassVar[dict[int, int]] = {}

    def __init__(self, name: str, stages: int, fits: int, reason: str = "OutOfResources") -> None:
        self.fn, self.fits, self.reason = types.SimpleNamespace(__name__=name, fn=None), fits, reason
        self.triton_meta: dict[str, int] = {}
        self.launchers: list[Any] = []
        self.compile_results = [self._precompile_config(settings(stages))]

    def _precompile_config(self, config: Any) -> Any:
        return types.SimpleNamespace(config=config)

    def _create_compile_options(self, cfg: Any, compile_meta: dict[str, Any]) -> dict[str, Any]:
        return {"num_stages": cfg.num_stages}

    def _reload_kernel(self) -> Any:
        return types.SimpleNamespace(fn=types.SimpleNamespace(__name__=self.fn.__name__, fn="loaded"))

    def _make_launchers(self) -> None:
        if self.compile_results[-1].config.num_stages > self.fits:
            raise RuntimeError(f"No valid triton configs. {self.reason}: out of resource: shared memory")
        if len(self.launchers) != len(self.compile_results):
            limit = self.triton_meta.get("maxnreg", 0)
            self.launchers = [types.SimpleNamespace(n_spills=self.spills.get(limit), limit=limit)]


def settings(stages: int) -> Any:
    return types.SimpleNamespace(num_stages=stages, kwargs={"XBLOCK": 4, "NUM_STAGES": stages})


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    for name in ("_make_launchers", "_create_compile_options"):
        monkeypatch.setattr(Tuner, name, getattr(Tuner, name))  # what is put back
    module = types.ModuleType("triton_heuristics")
    module.CachingAutotuner = Tuner  # type: ignore[attr-defined]
    launches.fit(module)
    wrapped = Tuner._make_launchers
    launches.fit(module)
    assert Tuner._make_launchers is wrapped
    return Tuner


def test_stages_are_taken_away_until_the_kernel_fits(fitted: Callable[..., Any]) -> None:
    first = settings(5)
    tuner = fitted(NAME, 5, fits=3)
    tuner._make_launchers()
    (result,) = tuner.compile_results
    assert vars(result.config) == vars(settings(3)) and tuner.fn.fn == "loaded"
    roomy = fitted(NAME, 5, fits=5)
    roomy._make_launchers()
    assert vars(roomy.compile_results[0].config) == vars(first) and roomy.fn.fn is None


def test_a_limit_on_registers_reaches_triton(fitted: Callable[..., Any]) -> None:
    tuner = fitted(NAME, 1, fits=1)
    for meta, limit in (({}, {}), ({"maxnreg": 96, "device_type": "cuda"}, {"maxnreg": 96})):
        assert tuner._create_compile_options(settings(1), meta) == {"num_stages": 1, **limit}
    assert tuner._create_compile_options(settings(1), {"maxnreg": 96, "device_type": "hip"}) == {
        "num_stages": 1
    }


@pytest.mark.parametrize(
    ("name", "fits", "reason"),
    [(NAME, 0, "OutOfResources"), (NAME, 3, "PTXASError"), ("triton_poi_fused_0", 3, "OutOfResources")],
)
def test_what_does_not_fit_at_all_or_is_not_ours_is_an_error(
    fitted: Callable[..., Any], name: str, fits: int, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        fitted(name, 5, fits, reason)._make_launchers()


@pytest.mark.parametrize(
    ("limit", "spills", "used"),
    [
        (72, {}, 72),
        (72, {72: 12}, 72),
        (72, {72: 13, 96: 12}, 96),
        (72, {72: 40, 96: 13, 112: 13}, 0),
        (128, {128: 40}, 128),  # no limit of those that are tried in turn
        (0, {0: 40}, 0),
    ],
)
def test_a_kernel_that_spills_many_registers_gets_more(
    fitted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, limit: int, spills: dict[int, int], used: int
) -> None:
    monkeypatch.setattr(Tuner, "spills", spills)
    for name, expected in ((NAME, used), ("triton_poi_fused_0", limit)):
        tuner = fitted(name, 4, fits=3 if name == NAME else 4)
        tuner.triton_meta["maxnreg"] = limit
        tuner._make_launchers()
        tuner._make_launchers()  # as Inductor may: nothing is compiled again
        (launcher,), (result,) = tuner.launchers, tuner.compile_results
        assert launcher.limit == expected and result.config.num_stages == (3 if name == NAME else 4)


def test_stages_are_left_to_inductor_where_it_takes_them_away_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Newer(Tuner):
        spills: ClassVar[dict[int, int]] = {72: 40}

        def compile_by_disabling_pipelining(self, config: Any) -> None: ...

    module = types.ModuleType("triton_heuristics")
    module.CachingAutotuner = Newer  # type: ignore[attr-defined]
    launches.fit(module)
    with pytest.raises(RuntimeError, match="OutOfResources"):
        Newer(NAME, 5, fits=3)._make_launchers()
    tuner = Newer(NAME, 3, fits=3)
    tuner.triton_meta["maxnreg"] = 72
    tuner._make_launchers()
    assert [one.limit for one in tuner.launchers] == [96]
