import json
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.command_line import smidgen
from tests.conftest import shared
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

pytest.importorskip("torch")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tables import render
from smidgen.profiling.benchmarks.report import (
    grid,
    grid_table,
    ratio_notes,
    read_cases,
    run_grid,
    train_notes,
    train_table,
)
from smidgen.profiling.benchmarks.training import PEERS, Benchmark, Settings, peers_here
from smidgen.profiling.benchmarks.training_run import (
    TRAIN_FILE,
    TrainingRun,
    from_record,
    ratios,
    spread,
    to_record,
)
from smidgen.profiling.instruments.child import DONE, KILLED_BY_CAP, STOOD_STILL, run_child
from smidgen.profiling.instruments.environment import BenchmarkError, find_base, label_words
from smidgen.profiling.instruments.stepping import Request, random_texts, read_request
from smidgen.profiling.peers.ort import ORT_TRAINING
from smidgen.profiling.records.record import (
    Conditions,
    Record,
    RecordError,
    append,
    from_line,
    read_records,
    to_line,
)

MIB = 1 << 20
# The issue's own names for what a run must say.
KEYS = (
    *("engine", "base", "batch", "tokens", "adapter", "plan", "predicted_peak_bytes"),
    *("peak_rss_bytes", "peak_anon_bytes", "cgroup_limit_bytes", "step_s", "losses"),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def settings(tiny_base: Base) -> Settings:
    return Settings(str(tiny_base.folder), tokens=32, steps=2, threads=1, memory_budget="1G")


@pytest.fixture(scope="module")
def ours(settings: Settings) -> TrainingRun:
    """A run of our engine; a `TrainingRun` is frozen, so that all may look at the same."""
    return Benchmark(settings).ours()


def last_line(arguments: list[str]) -> dict[str, Any]:
    result = smidgen("profile", *arguments)
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def refusal(arguments: list[str]) -> str:
    result = smidgen("profile", *arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_a_run_is_complete(ours: TrainingRun) -> None:
    assert ours.outcome == DONE
    assert len(ours.losses) == 3 and len(ours.steps_s) == 2 and ours.untrained == []
    assert "texts" not in to_record(ours, "s").subject | ours.settings
    assert len(ours.steps_processor_s) == 2 and min(ours.steps_processor_s) > 0
    assert ours.plan is not None and ours.trained_tensors == 8
    assert ours.predicted_parts is not None
    assert sum(ours.predicted_parts.values()) == ours.predicted_peak_bytes
    assert 0 < ours.peak_anon_bytes < ours.peak_rss_bytes
    assert ours.cgroup_limit_bytes is None and ours.cap["mechanism"] == "none"
    assert ours.budget_bytes == 1024 * MIB


@pytest.mark.slow
def test_with_json_one_run_is_told_whole_and_kept_as_a_record(
    settings: Settings, tmp_path: Path
) -> None:
    arguments = ["train", "--base", settings.base, "--tokens", "32", "--steps", "1"]
    arguments += ["--warmup", "0", "--memory-budget", "1G", "--out", str(tmp_path / "out")]
    record = last_line([*arguments, "--json"])
    assert not set(KEYS) - set(record)
    assert set(record["step_s"]) == {"median", "min", "max", "iqr"}
    (kept,) = read_records(tmp_path / "out" / "train.jsonl").records
    assert kept.kind == "train" and kept.is_peer is False and kept.subject["budget"] == "1G"
    assert kept.median("peak_rss_bytes") == record["peak_rss_bytes"]
    assert kept.details["losses"] == record["losses"]


@pytest.mark.slow
def test_a_child_over_its_cap_is_reported_as_killed_by_it() -> None:
    allocate = "held = bytearray(200 << 20); held[::4096] = held[::4096]"
    child = run_child([sys.executable, "-c", allocate], 64 * MIB, 0, {})
    if child.cap.limit_bytes is None:
        pytest.skip(f"no memory cgroup here: {child.cap.note}")
    assert child.outcome == KILLED_BY_CAP


def test_a_child_that_takes_too_long_is_ended_and_said_to_stand_still() -> None:
    child = run_child([sys.executable, "-c", "input() or print('never')"], None, 0, {}, within_s=30)
    assert child.outcome.startswith("failed with exit code 1")  # its end of file came before
    asleep = "import time; time.sleep(600)"
    assert (
        run_child([sys.executable, "-c", asleep], None, 0, {}, within_s=0.2).outcome == STOOD_STILL
    )


def test_a_child_that_fails_says_how() -> None:
    child = run_child([sys.executable, "-c", "raise ValueError('no luck')"], None, 0, {})
    assert child.outcome == "failed with exit code 1: ValueError: no luck"


def test_a_child_killed_from_outside_is_not_laid_to_the_cap() -> None:
    script = "import os; os.kill(os.getpid(), 9)"
    child = run_child([sys.executable, "-c", script], None, 0, {})
    assert child.outcome == "killed from outside (SIGKILL)"


def test_chatter_between_the_lines_is_passed_over() -> None:
    script = "print('loading ...'); print('[1]'); print('{\"event\": \"done\"}')"
    child = run_child([sys.executable, "-c", script], None, 0, {})
    assert child.outcome == DONE and child.lines == [{"event": "done"}]


@pytest.mark.slow
def test_our_engine_under_a_real_cap(settings: Settings) -> None:
    run = Benchmark(replace(settings, cap_bytes=500 * MIB, memory_budget="480M")).ours()
    if run.cgroup_limit_bytes is None:
        pytest.skip(f"no memory cgroup here: {run.cap['note']}")
    assert run.outcome == DONE
    assert run.cgroup_limit_bytes == 500 * MIB
    assert run.cgroup_peak_bytes is not None and run.cgroup_peak_bytes <= 500 * MIB
    assert "page cache" in run.cap["page_cache"]


@pytest.mark.slow
@pytest.mark.fault
def test_our_engine_over_its_cap_is_a_result_and_not_a_crash(settings: Settings) -> None:
    run = Benchmark(replace(settings, cap_bytes=100 * MIB)).ours()
    if run.cgroup_limit_bytes is None:
        pytest.skip(f"no memory cgroup here: {run.cap['note']}")
    assert run.outcome == KILLED_BY_CAP
    assert run.peak_rss_bytes > 0 and run.prediction_error is None
    assert any(KILLED_BY_CAP in note for note in train_notes([run]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PEERS if name != ORT_TRAINING])
def test_a_peer_holds_our_weights_and_trains(
    settings: Settings, ours: TrainingRun, name: str
) -> None:
    pytest.importorskip("peft")
    if name == "nf4":
        pytest.importorskip("bitsandbytes")
    peer = Benchmark(settings).peer(name)
    assert peer.outcome == DONE and peer.untrained == []
    if PEERS[name] == "float32":  # nf4 rounds the tiny base's weights once more
        assert peer.losses[0] == pytest.approx(ours.losses[0], rel=1e-5)
    found = ratios(ours, [peer])[name]
    assert found["peak_rss"] == pytest.approx(ours.peak_rss_bytes / peer.peak_rss_bytes)
    assert found["step_s"] is not None and found["step_s"] > 0
    assert name in ratio_notes("torch", {name: found})[0]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_all_words_are_asked_for_at_masked_tokens(settings: Settings, engine: str) -> None:
    """The first loss is about that of a guess: log of the vocabulary's size, not of four labels."""
    run = Benchmark(replace(settings, engine=engine, masked=3)).ours()
    assert run.outcome == DONE and run.untrained == [] and run.adapter.endswith(" masked:3")
    assert run.losses[0] > 2 * math.log(4)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder whose last four tokens are label words."""
    folder = write_tiny_decoder(tmp_path_factory.mktemp("decoder"))
    told = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = told["model"]["vocab"]
    for letter, word in zip(list(vocabulary)[-4:], "abcd", strict=True):
        vocabulary[f"\u0120{word}"] = vocabulary.pop(letter)
    told["model"]["merges"] = [["\u0120", word] for word in "abcd"]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peft", "peft-checkpointing", "nf4"])
def test_a_peer_of_a_decoder_is_asked_for_the_same_next_tokens(
    settings: Settings, decoder: Path, name: str
) -> None:
    pytest.importorskip("peft")
    if name == "nf4":
        pytest.importorskip("bitsandbytes")
    asked = replace(settings, base=str(decoder), engine="onnx", adapter="lora:4@q,v", masked=31)
    benchmark = Benchmark(asked)
    ours, peer = benchmark.ours(), benchmark.peer(name)
    assert peer.outcome == DONE and peer.untrained == []
    assert peer.trained_tensors == ours.trained_tensors
    rounded = 0.2 if name == "nf4" else 1e-5
    assert peer.losses[0] == pytest.approx(ours.losses[0], rel=rounded)


def test_the_peer_that_asks_for_labels_alone_is_left_out_where_words_are_asked_for() -> None:
    names, notes = peers_here(asks_for_words=True)
    assert ORT_TRAINING not in names
    assert f"peer {ORT_TRAINING} is left out: it asks for labels alone" in notes


def test_a_decoder_has_no_next_token_behind_the_last(settings: Settings, decoder: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"--masked 32: a decoder .* at 31 of them at most"):
        Benchmark(replace(settings, base=str(decoder), masked=32))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_tags_are_asked_for_at_each_token(settings: Settings, engine: str) -> None:
    """The first loss is about that of a guess among nine tags."""
    tagging = replace(settings, engine=engine, is_tagging=True, adapter="lora:4+head")
    run = Benchmark(tagging).ours()
    assert run.outcome == DONE and run.untrained == [] and run.adapter.endswith("+head tagging")
    assert run.losses[0] == pytest.approx(math.log(9), rel=0.3)


def test_a_run_that_did_not_end_has_no_ratio(ours: TrainingRun) -> None:
    killed = replace(ours, engine="nf4", outcome=KILLED_BY_CAP)
    assert set(ratios(ours, [killed])["nf4"].values()) == {None}


def test_the_table_has_a_row_a_process(ours: TrainingRun) -> None:
    peer = replace(ours, engine="nf4", plan=None, predicted_peak_bytes=None)
    assert len(train_table([ours, peer]).rows) == 2
    notes = train_notes([ours, replace(peer, untrained=["a.lora_A"])])
    assert "nf4: no gradient reached a.lora_A" in notes


def test_a_screen_of_80_columns_says_engine_and_machine(ours: TrainingRun) -> None:
    peer = replace(ours, engine="peft-checkpointing", cgroup_limit_bytes=MIB, cgroup_peak_bytes=9)
    table = render(train_table([ours, peer]), 80)
    assert max(map(len, table.splitlines())) <= 80 and "smidgen torch" in table
    assert re.search(r"peft-checkpointing +[\d.]+ MiB +[\d.]+ MiB +[\d.]+ MiB", table)
    notes = "\n".join(train_notes([ours]))
    assert str(ours.machine["processor"]) in notes and "smidgen torch" in notes
    assert all(name in notes for name in ours.machine["instruction_sets"])


@pytest.mark.parametrize(("load", "is_busy"), [(0.1, False), (1.0, True)])
def test_a_busy_machine_is_warned_of(ours: TrainingRun, load: float, is_busy: bool) -> None:
    machine = ours.machine | {"cores": 2, "load_1m": load}
    notes = train_notes([replace(ours, machine=machine)])
    assert any("other processes were at work" in note for note in notes) == is_busy


def test_a_grid_names_a_base_by_its_last_part(ours: TrainingRun) -> None:
    settings = {"base": "/a/folder/of/ours/" + "x" * 60 + "/minilm", "bits": 8, "batch": 4}
    peaks: dict[str, Any] = {"predicted_peak_bytes": 9 * MIB, "peak_rss_bytes": 10 * MIB}
    case = replace(ours, settings=settings, outcome=DONE, **peaks)
    for text in (render(grid_table([case]), 80), render(grid_table([case]))):
        assert re.search(r"minilm +8 +4 +9\.0 MiB +10\.0 MiB +-10\.0 %", text), text
        assert "/a/folder" not in text
    assert max(map(len, render(grid_table([case]), 80).splitlines())) <= 80


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], None),
        ([2.0], {"median": 2.0, "min": 2.0, "max": 2.0, "iqr": 0.0}),
        ([4.0, 1.0, 2.0, 3.0, 5.0], {"median": 3.0, "min": 1.0, "max": 5.0, "iqr": 2.0}),
    ],
)
def test_spread(seconds: list[float], expected: dict[str, float] | None) -> None:
    assert spread(seconds) == expected


def test_equal_requests_give_equal_texts_of_full_length() -> None:
    request = Request(
        engine="torch",
        base="base",
        batch=6,
        tokens=16,
        adapter="lora:8",
        memory_budget="auto",
        warmup=1,
        steps=2,
        seed=3,
        words=("a", "b", "c", "d"),
        word_ids=(7, 8, 9, 10),
        vocabulary=100,
        rank=8,
        alpha=16,
        targets="query",
    )
    first, again = random_texts(request), random_texts(read_request(request.to_json()))
    assert all((a.ids == b.ids).all() for a, b in zip(first, again, strict=True))
    assert [texts.ids.shape for texts in first] == [(6, 16)] * 3
    assert first[0].labels.tolist() == [0, 1, 2, 3, 0, 1] and first[0].attention.all()


def texts_of(folder: Path, count: int) -> Path:
    file = folder / "texts.csv"
    rows = [f"{'a ' * (1 + index % 9)},mail" for index in range(count)]
    file.write_text("\n".join(["text,label", *rows]))
    return file


def test_steps_have_texts_as_long_as_those_of_a_file(settings: Settings, tmp_path: Path) -> None:
    asked = replace(settings, texts=str(texts_of(tmp_path, 200)), batch=8)
    benchmark = Benchmark(asked)
    request = benchmark._request("onnx", tmp_path, "train")
    assert "at the median; 0 of 200 texts reach --tokens" in benchmark.notes[0]
    steps = random_texts(replace(request, pad_id=0))
    lengths = [step.attention.sum(axis=1) for step in steps]
    assert len(steps) == 3 and len({length for some in lengths for length in some}) > 3
    for step, some in zip(steps, lengths, strict=True):
        assert step.ids.shape == (8, some.max()) and some.max() <= 32
        assert (step.ids[step.attention == 0] == 0).all() and some.min() > 3
    with pytest.raises(BenchmarkError, match=r"has 20 texts; --steps and --warmup take 3 x 8"):
        Benchmark(replace(asked, texts=str(texts_of(tmp_path, 20))))
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"columns text are expected, 2 found; put one there$"):
        Benchmark(replace(asked, texts=str(other)))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "budget"), [("torch", "1G"), ("onnx", "160M")])
def test_texts_of_many_lengths_keep_to_the_prediction(
    settings: Settings, tmp_path: Path, engine: str, budget: str
) -> None:
    """What is kept by shape is kept of few.

    oneDNN compiles products by shape, in bfloat16: 620 MiB of 445, with 1,024 of them. ONNX
    Runtime's arena keeps a block of each size that grows: 193 of 149.
    """
    file, base = tmp_path / "texts.csv", str(shared("models", "minilm-l6-mlm"))
    lengths = [5 + index * index % 110 for index in range(400)]
    file.write_text("\n".join(["text", *("rain " * length for length in lengths)]))
    asked = replace(settings, base=base, texts=str(file), tokens=128, batch=16, steps=22)
    run = Benchmark(replace(asked, engine=engine, memory_budget=budget)).ours()
    assert run.predicted_peak_bytes and run.peak_rss_bytes < 1.05 * run.predicted_peak_bytes


@pytest.mark.slow
def test_a_peer_steps_over_the_same_texts_of_a_file(settings: Settings, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    benchmark = Benchmark(replace(settings, texts=str(texts_of(tmp_path, 60))))
    mine, peer = benchmark.ours(), benchmark.peer("peft-checkpointing")
    assert peer.losses[0] == pytest.approx(mine.losses[0], rel=1e-5)
    assert mine.step_flops is None and "texts of texts.csv of at most" in str(train_table([mine]))
    kept, other = to_record(mine, "s"), to_record(benchmark.ours(), "s")
    assert kept.subject == other.subject  # others' texts are another subject
    (tmp_path / "texts.csv").write_text("text\n" + "a parcel came again\n" * 60)
    others = to_record(Benchmark(benchmark.settings).ours(), "s").subject
    assert others != kept.subject and str(others["texts"]).startswith("texts.csv ")
    assert str(tmp_path) not in str(kept.subject | kept.details["settings"] | {"base": ""})


def test_label_words_are_four_different_tokens(tiny_base: Base) -> None:
    words = label_words(tiny_base)
    assert len(words) == len(set(words.values())) == 4


def test_a_base_in_other_bits_is_packed_once(tiny_base: Base) -> None:
    packed = find_base(str(tiny_base.folder), False, 8, 0)
    written = packed.weights.stat().st_mtime_ns
    again = find_base(str(tiny_base.folder), False, 8, 0)
    assert (packed.bits, again.base_id) == (8, packed.base_id)
    assert again.weights.stat().st_mtime_ns == written
    with pytest.raises(BenchmarkError, match="packed with 8 bits already"):
        find_base(str(packed.folder), False, 16, 0)


@pytest.mark.slow
@pytest.mark.fault
def test_a_grid_goes_on_where_it_was_cut(settings: Settings, tmp_path: Path) -> None:
    common = replace(settings, base="")
    cases = grid(common, [settings.base], [8], [1, 2])
    path, asked = tmp_path / "grid.jsonl", list[int]()
    first = next(iter(run_grid(cases, path, lambda number, _: asked.append(number))))
    path.write_text(path.read_text() + '{"settings": {"ba')  # a crash in the middle of a line
    done = list(run_grid(cases, path, lambda number, _: asked.append(number)))
    assert asked == [0, 1] and done[0] == first and read_cases(path) == done
    assert all(case.prediction_error is not None for case in done)
    assert len(grid_table(done).rows) == 2


def test_a_sample_of_the_grid_is_drawn_by_the_seed() -> None:
    whole, some = grid(Settings("")), grid(Settings(""), sample=7)
    assert len(whole) == 45 and len(some) == 7
    assert some == grid(Settings(""), sample=7) and set(some) < set(whole)
    with pytest.raises(BenchmarkError, match="1 to 45"):
        grid(Settings(""), sample=46)


def test_a_case_comes_out_of_its_record(ours: TrainingRun, settings: Settings) -> None:
    record = from_line(to_line(to_record(ours, "session", "grid")))
    assert from_record(record) == ours and record.conditions.base_id == ours.base_id
    assert record.subject == settings.kept() and "texts" not in record.subject


def test_a_cards_memory_is_in_the_record_of_its_run(ours: TrainingRun, settings: Settings) -> None:
    peak = {"reserved_bytes": 9, "allocated_bytes": 7, "is_unified": False}
    found = to_record(replace(ours, device="cuda", device_peak=peak), "session")
    assert found.subject["device"] == "cuda"
    assert (found.median("card_reserved_bytes"), found.median("card_allocated_bytes")) == (9, 7)
    on_processor = to_record(ours, "session")
    assert on_processor.key != found.key and "card_reserved_bytes" not in on_processor.figures


def test_a_grids_record_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "grid.jsonl"
    append(path, [Record("grid", {"base": "a"}, {}, Conditions({}, {}), details={"step_s": "x"})])
    with pytest.raises(RecordError, match=r"grid\.jsonl: the record of a is not a run's: "):
        read_cases(path)


def test_a_file_that_is_no_grid_is_named(tmp_path: Path) -> None:
    (tmp_path / "grid.jsonl").write_text('{"round_index": 1}\n')
    with pytest.raises(RecordError, match=r"grid\.jsonl, line 1: not a record"):
        read_cases(tmp_path / "grid.jsonl")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--base", "/no/such/base"], "no base at /no/such/base"),
        (["--base", "gpt-17", "--random"], "gpt-17"),
        (["--base", "embedded", "--bits", "3"], "--bits 3 is not one of 4, 8 and 16"),
        (["--base", "embedded", "--batch", "0"], "--batch"),
        (["--base", "embedded", "--tokens", "100000"], "--tokens"),
        (["--base", "embedded", "--tokens", "5000"], "--tokens 5000: base embedded takes 4 to"),
        (["--base", "embedded", "--adapter", "lora"], "adapter 'lora' is unknown"),
        (["--base", "embedded", "--memory-budget", "much"], "--memory-budget 'much' is not a size"),
        (["--base", "embedded", "--cgroup", "auto"], "--cgroup 'auto' is not a size"),
        (["--base", "embedded", "--engine", "jax"], "--engine jax is not known"),
        (["--base", "embedded", "--steps", "0"], "--steps 0 is less than 1"),
        (["--base", "embedded", "--threads", "0"], "--threads 0 is less than 1"),
        (["--base", "embedded", "--peer", "mine"], "--peer mine is not known"),
        (["--base", "embedded", "--peers", "--adapter", "bias"], "peers train LoRA alone"),
        (["--base", "embedded", "--texts", "."], "--texts .: a file is expected"),
        (["--base", "embedded", "--texts", "a.csv", "--masked", "2"], "one of them alone"),
        (
            ["--base", "embedded", "--peer", "peft", "--tagging", "--adapter", "lora:4+head"],
            "peers train LoRA alone",
        ),
        (["--base", "embedded", "--masked", "9999"], "masked"),
        (["--base", "embedded", "--tagging"], "such as lora:8+head"),
        (["--base", "embedded", "--masked", "3", "--adapter", "head"], "--masked asks for words"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], expected: str) -> None:
    assert expected in refusal(["train", *arguments])


@pytest.mark.slow
def test_a_budget_below_every_plan_is_one_line(settings: Settings) -> None:
    arguments = ["train", "--base", settings.base, "--tokens", "32", "--memory-budget", "20M"]
    assert "is below the smallest plan for this model" in refusal(arguments)


@pytest.mark.slow
def test_no_child_outlives_a_terminated_benchmark(settings: Settings) -> None:
    command = [sys.executable, "-m", "smidgen", "profile", "train", "--base", settings.base]
    command += ["--tokens", "32", "--steps", "100000", "--memory-budget", "1G"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        parent, end = psutil.Process(process.pid), time.monotonic() + 60
        while not (children := parent.children()) and time.monotonic() < end:
            time.sleep(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.strip().endswith("smidgen profile: stopped")
    assert children and not any(child.is_running() for child in children)


@pytest.mark.slow
def test_what_was_measured_is_kept_whatever_ends_the_next_peer(
    settings: Settings, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "smidgen", "profile", "train", "--base", settings.base]
    command += ["--tokens", "32", "--steps", "3", "--memory-budget", "1G", "--out", str(tmp_path)]
    file = tmp_path / TRAIN_FILE
    with subprocess.Popen([*command, "--peer", "torch-float32"], stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 120
        while not file.exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    (kept,) = read_records(file).records
    assert kept.is_done and not kept.is_peer


def test_the_parent_never_imports_torch() -> None:
    script = "import sys, smidgen.profiling.cli\n"
    script += "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
