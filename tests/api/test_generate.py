"""`smidgen.generate` and `smidgen client generate` with a tiny decoder that a test trains."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import smidgen
from smidgen.edge_client.commands.predict import _Shown
from smidgen.edge_client.engine.generation import Sampling, chosen
from smidgen.edge_client.errors import Failed, WrongInput
from tests.command_line import smidgen as typed
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_decoder(tmp_path_factory.mktemp("decoder") / "base")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that has learnt to say `on` and `off`."""
    folder = tmp_path_factory.mktemp("home")
    rows = [{"prompt": "lamp", "completion": "on"}, {"prompt": "fan", "completion": "off"}]
    (folder / "labelled.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "task.toml").write_text('name = "home"\nkind = "chat"\n')
    out = folder / "adapter"
    smidgen.train(
        folder, out, base=base, engine="onnx", epochs=100, lr=0.03, tokens=64, batch=2,
        adapter="lora:8@q,k,v,o,gate,up,down",
    )  # fmt: skip
    return out


def test_an_adapter_answers_as_it_was_taught(base: Path, adapter: Path) -> None:
    told: list[tuple[int, str]] = []
    found = smidgen.generate(
        ["lamp", "fan"], adapter, base=base, on_piece=lambda *piece: told.append(piece)
    )
    assert [(one.text.strip(), one.ended_by) for one in found] == [("on", "end"), ("off", "end")]
    for number, one in enumerate(found, start=1):
        assert "".join(piece for whose, piece in told if whose == number) == one.text


def test_it_ends_at_a_stop_word_and_after_so_many_tokens(base: Path, adapter: Path) -> None:
    (stopped,) = smidgen.generate(["fan"], adapter, base=base, stop=["ff"])
    assert (stopped.text, stopped.ended_by) == ("o", "stop")
    (short,) = smidgen.generate(["fan"], adapter, base=base, new_tokens=2)
    assert (short.text, short.tokens, short.ended_by) == ("of", 2, "length")


def test_equal_seeds_draw_equal_answers(base: Path) -> None:
    known = {"base": base, "temperature": 1.5, "new_tokens": 20}
    drawn = [smidgen.generate(["lamp"], seed=seed, **known)[0].text for seed in (1, 1, 2)]  # type: ignore[arg-type]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_budget_that_is_too_small_is_refused_and_a_large_one_changes_no_answer(
    base: Path, adapter: Path
) -> None:
    told: list[str] = []
    held = smidgen.generate(["lamp"], adapter, base=base, memory_budget="4G")
    with pytest.raises(WrongInput, match=r"--memory-budget 1M: .* need \d+M at least"):
        smidgen.generate(["lamp"], adapter, base=base, memory_budget="1M", tell=told.append)
    assert smidgen.generate(["lamp"], adapter, base=base) == held and not told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -1.0}, "--temperature -1: 0 to 10 is expected"),
        ({"temperature": float("nan")}, "--temperature nan: 0 to 10 is expected"),
        ({"top_p": 0.0}, "--top-p 0: above 0"),
        ({"stop": [""]}, "--stop: a word is expected"),
        ({"task": "agnews"}, "take smidgen.predict"),
        ({"base": "embedded"}, "is a masked language model"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    base: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(WrongInput, match=said):
        smidgen.generate(["my secret"], **{"base": base} | options)  # type: ignore[arg-type]


def test_an_answer_ends_where_the_base_reads_no_more(base: Path) -> None:
    (one,) = smidgen.generate(["x" * 200], base=base, new_tokens=10_000)
    assert one.ended_by in ("end", "length") and one.tokens < 56
    with pytest.raises(WrongInput, match=r"text 2 has \d+ tokens; base .* reads 256"):
        smidgen.generate(["lamp", "x" * 300], base=base)


def test_the_command_writes_answers_as_they_come(
    base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["client", "generate", "--adapter", str(adapter), "--base", str(base)]
    done = typed(*known, "lamp", "fan")
    assert (done.exit_code, [one.strip() for one in done.stdout.splitlines() if one.strip()]) == (
        0,
        ["on", "off"],
    )
    done = typed(*known, "lamp", "--json")
    assert [one["text"].strip() for one in json.loads(done.stdout)] == ["on"]


def test_lines_of_stdin_are_texts(
    base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ["client", "generate", "--adapter", str(adapter), "--base", str(base), "-", "--json"]
    for body, expected in ((b"lamp\r\n\nfan\n", ["on", "off"]), ("x\u2028y\x0bz".encode(), None)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body), "utf-8"))
        found = [one["text"].strip() for one in json.loads(typed(*known).stdout)]
        assert found == expected if expected else len(found) == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    done = typed(*known)
    assert done.exit_code == 2 and "stdin is not UTF-8 at byte 0" in done.stderr


def test_an_adapter_that_has_diverged_writes_nothing(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(adapter, tmp_path / "broken"))
    state = load_file(broken / "adapter_model.safetensors")
    save_file(
        {name: np.full_like(one, np.nan) for name, one in state.items()},
        broken / "adapter_model.safetensors",
    )
    with pytest.raises((Failed, WrongInput), match=r"not finite|NaN|finite"):
        smidgen.generate(["lamp"], broken, base=base)


def test_next_to_no_temperature_is_none() -> None:
    logits, draws = np.array([0.0, 9.0, 8.999], np.float32), np.random.default_rng(0)
    for temperature in (0.0, 5e-324, 1e-6):
        assert chosen(logits, Sampling(temperature), draws) == 1


def test_no_text_has_no_answer(base: Path) -> None:
    assert smidgen.generate([], base=base) == []


def test_a_model_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _Shown(is_quiet=False)
    shown.piece(1, "a\x1b[2J\tb\n")
    shown.piece(2, "日")
    assert capsys.readouterr().out == "a?[2J\tb\n\n日"


def test_the_card_names_the_file_of_llama_cpp_where_it_is_there(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    assert (adapter / "adapter.gguf").is_file()
    assert "--lora adapter.gguf" in (adapter / "README.md").read_text()
    smidgen.train(
        adapter.parent, tmp_path / "soft", base=base, engine="onnx", adapter="prompt:2", tokens=64
    )
    assert not (tmp_path / "soft" / "adapter.gguf").exists()
    assert "llama" not in (tmp_path / "soft" / "README.md").read_text().partition("## Use it")[2]
