"""What a change of the source must not change, from the commands alone.

    python scripts/golden.py record before.json            # in one checkout
    python scripts/golden.py record after.json --timed     # in another, on the same machine
    python scripts/golden.py compare before.json after.json

A record has the SHA-256 of each pack and adapter of PEFT, those of every round of twelve
experiments, the objects of `--json`, exit codes of wrong use, and plans. Another processor gives
other bytes (docs/processors.md), so records are compared, never kept. With --timed peaks and
seconds of six cells are in it too, whose ratios `compare` prints. AG News is read from
$SMIDGEN_DATA; without it its experiments are left out, and said to be.
"""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VARYING = re.compile(r"(_s|_at|_peak|peak_rss_bytes|available_bytes)$|^(machine|versions)$")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "while", "rain", "over", "hills", "and", "dogs")
TASKS = {
    "labels": 'name = "g"\nlabels = ["good", "bad"]\npatterns = ["{text} it was [MASK] ."]\n',
    "pairs": 'name = "p"\nlabels = ["good", "bad"]\npatterns = ["{text_a} ? [MASK] , {text_b}"]\n',
    "tagging": 'name = "t"\nkind = "tagging"\nlabels = ["Pet", "Place"]\n',
    "mlm": 'name = "m"\nkind = "mlm"\n',
}
TRAININGS = {
    "labels": ("lora:8", "prompt:4", "bias", "head", "lora:4@q,v,o,up,down+head"),
    "pairs": ("lora:4",),
    "tagging": ("lora:4+head",),
    "mlm": ("lora:4",),
}
SCAFFOLD = '[training]\noptimizer = "sgd"\nlr = 0.1\nscaffold = true\n'
EXPERIMENTS = {
    "plain": "",
    "onnx": 'engine = "onnx"\n',
    "int8": '[updates]\nup = "int8"\ndown = "int8"\n',
    "int4": '[updates]\nup = "int4"\n',
    "topk": '[updates]\nup = "topk:0.05"\n',
    "scaffold": SCAFFOLD,
    "scaffold-int4": f'{SCAFFOLD}[updates]\nup = "int4"\n',
    "proximal": "[training]\nproximal = 0.1\n",
    "server-adam": '[learning]\noptimizer = "fedadam"\nlr = 0.01\n',
    "product": '[learning]\nlora_mean = "product"\n',
    "median": '[learning]\nmean = "median"\n',
    "labelling": "[labelling]\nconfidence = 0.5\nis_gated = false\n",
}
WRONG = (
    ("client", "train", "--data", "nowhere", "--out", "x"),
    (
        "client",
        "predict",
        "--adapter",
        "nowhere",
        "--file",
        "labels/labelled.csv",
        "--out",
        "x.csv",
    ),
    ("client", "train", "--data", "labels", "--out", "x", "--adapter", "lora:0"),
    ("client", "train", "--data", "labels", "--out", "x", "--memory-budget", "1M"),
    ("pack", "nowhere", "--bits", "8", "--out", "x"),
    ("pack", "embedded", "--bits", "5", "--out", "x"),
    ("coordinator", "serve", "--store", "nowhere"),
    ("simulate", "run", "nowhere.toml"),
    ("profile", "compare", "nowhere", "nowhere"),
    ("client", "doctor", "--nonsense"),
)
CELLS = tuple((e, t) for e in ("torch", "onnx") for t in ((4, 64), (8, 128), (4, 256)))


def record(is_timed: bool) -> Iterator[tuple[str, Any]]:
    """Run the commands in an empty folder; name and what came, one after the other."""
    random.seed(0)
    for kind in TASKS:
        _write_texts(Path(kind), kind)
    for bits in (4, 8, 16):
        _run("pack", "embedded", "--bits", str(bits), "--out", f"pack{bits}")
        yield f"pack {bits}", _hashes(Path(f"pack{bits}"))
    for kind, adapters in TRAININGS.items():
        for engine, base in (("torch", "embedded"), ("onnx", "embedded"), ("onnx", "pack4")):
            for adapter in adapters:
                yield from _trained(kind, engine, base, adapter)
    for name, extra in EXPERIMENTS.items() if os.environ.get("SMIDGEN_DATA") else ():
        yield f"experiment {name}", _experiment(name, extra)
    for words in WRONG:
        yield f"exit code of {' '.join(words)}", _run(*words).returncode
    for engine, (batch, tokens) in CELLS:
        words = ("--engine", engine, "--batch", str(batch), "--tokens", str(tokens), "--json")
        plan = _object(_run("client", "plan", *words, "--memory-budget", "1G"))
        yield f"plan {engine} {batch} x {tokens}", plan
        if is_timed:
            cell = _last(_run("profile", "train", "--base", "embedded", *words))
            yield (
                f"timed {engine} {batch} x {tokens}",
                {"step_s": cell["step_s"]["median"], "peak": cell["peak_anon_bytes"]},
            )


def _trained(kind: str, engine: str, base: str, adapter: str) -> Iterator[tuple[str, Any]]:
    name = f"{kind} {engine} {base} {adapter}"
    out = name.replace(" ", "-").replace(":", "")
    words = ("--base", base, "--engine", engine, "--json")
    asked = ("--adapter", adapter, "--tokens", "32", "--epochs", "2", "--out", out)
    yield f"train {name}", _object(_run("client", "train", "--data", kind, *words, *asked))
    yield f"adapter {name}", _hashes(Path(out))
    on = ("--adapter", out, *words)
    yield f"evaluate {name}", _object(_run("client", "evaluate", "--data", kind, *on))
    file = next(Path(kind).glob("test.*"))
    answers = Path(f"{out}.csv" if kind in {"labels", "pairs"} else f"{out}.jsonl")
    _last(_run("client", "predict", "--file", str(file), "--out", str(answers), *on))
    yield f"predict {name}", _hash(answers)


def _experiment(name: str, extra: str) -> list[Any]:
    said = 'dataset = "ag_news"\nrounds = 3\ncohort = 3\ntest_texts = 100\n'
    deal = "[deal]\nclients = 6\nlabelled = 48\nlabelled_clients = 6\n"
    Path(f"{name}.toml").write_text(
        f"{said}{deal}{extra}" if "[" in extra else f"{said}{extra}{deal}"
    )
    _last(_run("simulate", "run", f"{name}.toml", "--out", f"{name}-rows", "--json"))
    files = sorted(Path(f"{name}-rows").rglob("*.jsonl"))
    return [_steady(json.loads(row)) for file in files for row in file.open()]


def _write_texts(folder: Path, kind: str) -> None:
    folder.mkdir()
    (folder / "task.toml").write_text(TASKS[kind])
    tags = {"cat": "B-Pet", "dogs": "B-Pet", "hills": "B-Place"}

    def text() -> list[str]:
        return random.choices(WORDS, k=random.randint(3, 20))

    for part in ("labelled", "test"):
        if kind == "tagging":
            rows = ["".join(f"{w}\t{tags.get(w, 'O')}\n" for w in text()) for _ in range(24)]
            (folder / f"{part}.conll").write_text("\n".join(rows))
            continue
        head = {"labels": "text,label", "pairs": "text_a,text_b,label", "mlm": "text"}[kind]
        rows = [head]
        for _ in range(24):
            texts = [" ".join(text()) for _ in range(2 if kind == "pairs" else 1)]
            rows.append(",".join(texts + [random.choice(["good", "bad"])] * (kind != "mlm")))
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "smidgen", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last(ran: subprocess.CompletedProcess[str]) -> Any:
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        raise SystemExit(f"{' '.join(ran.args)}: exit code {ran.returncode}: {ran.stderr[-500:]}")
    return json.loads(lines[-1])


def _object(ran: subprocess.CompletedProcess[str]) -> Any:
    return _steady(_last(ran))


def _steady(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _steady(one) for key, one in value.items() if not VARYING.search(key)}
    return [_steady(one) for one in value] if isinstance(value, list) else value


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): _hash(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs and the ratios of what was timed; 1 where something differs."""
    different = 0
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if name.startswith("timed") and old and new:
            print(name, *(f"{key} x {new[key] / old[key]:.3f}" for key in old))
        elif old != new and not name.startswith("timed"):
            different += 1
            print(f"{name}:\n  before {json.dumps(old)[:2000]}\n  after  {json.dumps(new)[:2000]}")
    print(f"{different} of {len({*before, *after})} differ")
    return 1 if different else 0


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        both = [json.loads(Path(name).read_text()) for name in sys.argv[2:4]]
        raise SystemExit(compare(*both))
    path = Path(sys.argv[2]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = dict(record("--timed" in sys.argv))
    path.write_text(json.dumps(found, indent=1))
    if not os.environ.get("SMIDGEN_DATA"):
        print("no experiments: $SMIDGEN_DATA names no folder of data sets")
    print(f"{len(found)} entries in {path.name}")
