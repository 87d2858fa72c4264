"""Options as the user meets them: through torch.compile, config, patch and the environment."""

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as config
from fresh_process import python_after

from mixorder import options as options_module
from mixorder.errors import Decline, DeclineReason, MixorderError
from mixorder.options import SOURCE_HASH_KEY, Options, config_key, register

SHARED = "TORCHINDUCTOR_MIX_ORDER_REDUCTION"
KEYS = [config_key(f) for f in dataclasses.fields(Options)]


def test_the_list_of_options() -> None:
    """Pinned, so that an option is added on purpose; each one costs every reader something."""
    declared = [(config_key(f), f.default, f.metadata.get("env")) for f in dataclasses.fields(Options)]
    assert declared == [
        ("mixorder", False, "MIXORDER"),
        ("mixorder_split_size", 0, None),
        ("mixorder_autotune", False, None),
        ("mixorder_strict", False, "MIXORDER_STRICT"),
        ("mixorder_min_numel", 4096, None),
        ("mixorder_dump_dir", "", "MIXORDER_DUMP"),
        ("mixorder_interpret", False, None),
    ]


def test_every_option_is_described() -> None:
    lines = [line.strip() for line in inspect.getsource(Options).splitlines()]
    body = lines[: lines.index("@classmethod")]
    assert sum(line.startswith('"""') for line in body) == 1 + len(KEYS)


def test_current_follows_config() -> None:
    assert Options.current() == Options()
    with config.patch({"mixorder": True, "mixorder_split_size": 64}):
        assert Options.current() == Options(enabled=True, split_size=64)
    assert Options.current() == Options()


def test_as_config_round_trip() -> None:
    options = Options(enabled=True, split_size=8, min_numel=0, dump_dir="d", strict=True)
    with config.patch(options.as_config()):
        assert Options.current() == options


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("mixorder", 1, "bool"),
        ("mixorder_split_size", -1, "int >= 0"),
        ("mixorder_split_size", True, "int >= 0"),
        ("mixorder_min_numel", -65536, "int >= 0"),
        ("mixorder_dump_dir", None, "str"),
    ],
)
def test_bad_value_names_option_value_and_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with config.patch({key: value}), pytest.raises(ValueError) as error:
        Options.current()
    assert str(error.value) == f"option {key!r} is {value!r}; allowed: {allowed}"


def test_compile_refuses_wrong_type_and_unknown_name() -> None:
    with pytest.raises(RuntimeError, match="Unexpected type of attr mixorder, got int"):
        torch.compile(lambda x: x, options={"mixorder": 1})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixorder_autotun", "mixorder has no option 'mixorder_autotun': did you mean 'mixorder_autotune'?"),
        ("mixorder-stict", "mixorder has no option 'mixorder_stict': did you mean 'mixorder_strict'?"),
        (
            "mixorder_foo_of_bar_and_so_on",
            "mixorder has no option 'mixorder_foo_of_bar_and_so_on': there are ",
        ),
    ],
)
def test_a_misspelt_option_is_told_in_a_line(name: str, said: str) -> None:
    with pytest.raises(RuntimeError) as error:
        torch.compile(lambda x: x, options={"mixorder": True, name: True})
    assert str(error.value).startswith(said) and len(str(error.value)) < 400
    with pytest.raises(RuntimeError, match="Unexpected optimization option nothing_of_ours"):
        torch.compile(lambda x: x, options={"nothing_of_ours": True})


def test_the_environment_is_read_in_a_new_process() -> None:
    current = (
        "from mixorder.options import Options\n"
        "o = Options.current(); print(o.enabled, o.strict, repr(o.dump_dir))"
    )
    env = {SHARED: "1", "MIXORDER_STRICT": "1", "MIXORDER_DUMP": "1"}
    assert python_after("import torch", [current], **env) == ["True True '1'"]


def test_attribute_assignment_and_deletion_of_override() -> None:
    with config.patch("mixorder", False):
        config.mixorder = True
        assert Options.current().enabled
    assert config.mixorder is False


def test_entries_behave_like_native_ones() -> None:
    assert {*KEYS, SOURCE_HASH_KEY} <= config.get_config_copy().keys()
    before_hash, before_portable = config.get_hash(), config.save_config_portable()
    with config.patch("mixorder_split_size", 7):
        assert config.get_hash() != before_hash
        assert "mixorder_split_size = 7" in config.codegen_config()
        saved = config.save_config()
        changed = config.save_config_portable()
    assert config.get_hash() == before_hash
    assert before_portable != changed == {**before_portable, "mixorder_split_size": 7}
    assert pickle.loads(saved)["mixorder_split_size"] == 7
    with config.patch("mixorder_split_size", 0):
        config.load_config(saved)
        assert config.mixorder_split_size == 7


def test_entries_added_late_reach_hash_and_dicts() -> None:
    """Caches that torch filled before the registration, in any thread, must not hide entries."""
    entries = {key: config._config.pop(key) for key in (*KEYS, SOURCE_HASH_KEY)}
    seen: dict[str, Any] = {}
    filled, registered = threading.Event(), threading.Event()

    def fill() -> bytes:
        config.save_config()
        return config.get_hash()

    def other_thread() -> None:
        seen["before"] = fill()
        filled.set()
        registered.wait(10)
        seen["after"] = fill()
        seen["saved"] = pickle.loads(config.save_config())

    from mixorder.inductor.versions import _forget_config_caches

    try:
        _forget_config_caches()
        before = fill()
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert filled.wait(10)
        register(config)
        registered.set()
        thread.join()
        assert SOURCE_HASH_KEY in pickle.loads(config.save_config())
        assert config.get_hash() != before
        assert SOURCE_HASH_KEY in seen["saved"]
        assert seen["after"] != seen["before"]
    finally:
        config._config.update(entries)
        _forget_config_caches()


def test_register_keeps_what_is_set() -> None:
    with config.patch("mixorder", True):
        register(config)
        assert config.mixorder is True


def test_source_hash_covers_names_and_contents(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "__file__", str(tmp_path / "options.py"))
    hash_of = options_module.source_hash.__wrapped__
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "sub" / "b.py").write_text("2")
    first = hash_of()
    (tmp_path / "notes.txt").write_text("not source")
    assert hash_of() == first
    (tmp_path / "numbers.json").write_text("{}")
    assert first != (first := hash_of())
    (tmp_path / "sub" / "b.py").write_text("3")
    changed = hash_of()
    (tmp_path / "sub" / "b.py").rename(tmp_path / "sub" / "c.py")
    assert len({first, changed, hash_of()}) == 3


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({SHARED: "1"}, True),
        ({SHARED: "0"}, False),
        ({SHARED: ""}, False),
        ({SHARED: "true"}, True),
        ({SHARED: "Yes "}, True),
        ({SHARED: "0", "MIXORDER": "1"}, True),
        ({SHARED: "1", "MIXORDER": ""}, True),
    ],
)
def test_environment_switch(
    env: dict[str, str], expected: bool, enabled_by: Callable[[dict[str, str]], Options]
) -> None:
    assert enabled_by(env).enabled is expected
    with config.patch("mixorder", not expected):
        assert Options.current().enabled is not expected


@pytest.mark.parametrize("value", ["0", "no", "OFF"])
def test_off_wins_over_the_code(value: str, enabled_by: Callable[[dict[str, str]], Options]) -> None:
    """Cache keys say off as well: what is compiled so is not taken for a graph with regions."""
    off = enabled_by({"MIXORDER": value, SHARED: "1"})
    assert not off.enabled
    before = config.get_hash()
    with config.patch("mixorder", True):
        assert not Options.current().enabled and config.get_hash() == before


@pytest.mark.parametrize(
    ("env", "name", "expected"),
    [
        ({SHARED: "2"}, SHARED, False),
        ({"MIXORDER": "enable", SHARED: "1"}, "MIXORDER", True),
        ({"MIXORDER_STRICT": "sure"}, "MIXORDER_STRICT", False),
    ],
)
def test_a_value_that_means_nothing_is_told_once(
    env: dict[str, str], name: str, expected: bool, enabled_by: Callable[[dict[str, str]], Options]
) -> None:
    with pytest.warns(UserWarning) as said:
        assert enabled_by(env).enabled is expected
        assert Options.current().enabled is expected
    (text,) = [str(w.message) for w in said if "does not understand" in str(w.message)]
    assert text.startswith(f"mixorder does not understand {name}={env[name]!r}. Set it to one of 1, true, ")


def test_decline_reasons_are_explained() -> None:
    assert DeclineReason("row-too-wide") is DeclineReason.ROW_TOO_WIDE
    for reason in DeclineReason:
        assert reason.value == reason.name.lower().replace("_", "-")
        assert reason.explanation.endswith(".") and reason.explanation.count(".") == 1


def test_errors_tell_and_pickle() -> None:
    decline = Decline(DeclineReason.CYCLE, "through add", "add_3")
    assert str(decline) == "cycle: through add (at %add_3)"
    error = MixorderError("lower", "region0", KeyError("k"))
    assert isinstance(error.__cause__, KeyError)
    for text in ("'lower'", "region0", "KeyError: 'k'", '{"mixorder": False}', "MIXORDER_DUMP"):
        assert text in str(error)
    for original in (decline, error):
        for twin in (pickle.loads(pickle.dumps(original)), copy.copy(original)):
            assert str(twin) == str(original)
