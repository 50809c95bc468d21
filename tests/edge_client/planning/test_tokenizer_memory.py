"""What each kind of tokenizer takes in memory, in a fresh process each; the planner's constants.

    pytest tests/edge_client/planning/test_tokenizer_memory.py -m "slow or not slow" -s

prints the bytes an entry. `SMIDGEN_ENTRIES=901629` measures vocabularies as large as XLM-V's.
"""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.layout import checked_shape
from smidgen.edge_client.bases.random_models import CONFIGS
from smidgen.edge_client.bases.tokenizer import LEFT_BYTES, TOKENIZERS, tokenizer_kind
from smidgen.edge_client.planning.onnx_memory import estimate as onnx_estimate
from smidgen.edge_client.planning.plan import Workload
from smidgen.edge_client.planning.planner import plans
from smidgen.edge_client.planning.torch_memory import estimate
from tests.edge_client.bases.gguf.files import BYTES, fields, gguf, sentence_piece_fields

ENTRIES = int(os.environ.get("SMIDGEN_ENTRIES", "60000"))
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
READ = """
import sys
from functools import partial
from pathlib import Path
from tokenizers import Tokenizer, models
from smidgen.edge_client.bases.gguf.tokenizer import gguf_tokenizer
from smidgen.edge_client.planning.allocator import resident_bytes, trim, use_one_arena
from smidgen.edge_client.texts.tokens import Tokens

use_one_arena()
Tokenizer(models.WordLevel({"a": 0}, "a")).encode("a")
trim()
before = resident_bytes()
path = Path(sys.argv[1])
tokens = Tokens(path, partial(gguf_tokenizer, path) if path.is_file() else None)
tokens.encode("na me " * 500)
status = Path("/proc/self/status").read_text()
peak = int(status.split("VmHWM:")[1].split()[0]) << 10
trim()
held = resident_bytes()
tokens.let_go(lambda: None)
trim()
print(*((each - before) / tokens.size for each in (held, peak, resident_bytes())))
"""


def pieces(count: int) -> list[str]:
    """Words of one to three syllables, some at a word's beginning, as vocabularies have them."""
    syllables = ["".join(pair) for pair in product("bdfghjklmnprstvwäöéжки日", "aeiouyñя")]
    words = ("".join(word) for size in (1, 2, 3, 4) for word in product(syllables, repeat=size))
    found = (piece for word in words for piece in (f"▁{word}", word))
    return [piece for piece, _ in zip(found, range(count), strict=False)]


def model_of(kind: str, entries: int) -> models.Model:
    """A model of a kind; BPE with the merges an entry that RoBERTa's and Gemma's have."""
    names = pieces(entries - len(SPECIALS))
    ids = {piece: index for index, piece in enumerate((*SPECIALS, *names))}
    if kind == "Unigram":
        return models.Unigram([(piece, -index / 1e4) for piece, index in ids.items()], 3, False)
    if kind == "WordPiece":
        return models.WordPiece(ids, unk_token="<unk>")
    if kind == "WordLevel":
        return models.WordLevel(ids, unk_token="<unk>")
    letters = {letter for piece in names for letter in piece}
    ids |= {letter: len(ids) + index for index, letter in enumerate(sorted(letters - set(ids)))}
    splits = [(piece[:at], piece[at:]) for piece in names for at in range(1, len(piece))]
    known = [split for split in splits if split[0] in ids and split[1] in ids]
    is_sentence_piece = kind.startswith("Sentence")
    count = int(entries * (2.2 if is_sentence_piece else 1))
    return models.BPE(ids, known[:count], unk_token="<unk>", byte_fallback=is_sentence_piece)


def write(kind: str, entries: int, folder: Path) -> Path:
    if kind == "BPE in GGUF":
        made = json.loads(Tokenizer(model_of("BPE", entries)).to_str())["model"]
        changed: dict[str, Any] = {
            "tokens": [*made["vocab"]],
            "token_type": [1] * len(made["vocab"]),
        }
        changed |= {"merges": [" ".join(pair) for pair in made["merges"]]}
        own = {f"tokenizer__ggml__{key}": value for key, value in changed.items()}
        (folder / "tiny.gguf").write_bytes(gguf(fields(**own), {}))
        return folder / "tiny.gguf"
    if kind.endswith("GGUF"):
        names = pieces(entries - 256 - len(SPECIALS))
        letters = sorted({letter for piece in names for letter in piece} - {*names})
        pieces_fields = sentence_piece_fields([*SPECIALS[:4], *BYTES, *letters, *names])
        (folder / "tiny.gguf").write_bytes(gguf(pieces_fields, {}))
        return folder / "tiny.gguf"
    tokenizer = Tokenizer(model_of(kind, entries))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident bytes are read from /proc")
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_takes_no_more_than_planned_and_not_much_less(
    kind: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", READ, str(write(kind, ENTRIES, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, peak, left = map(float, done.stdout.split())
    print(f"{kind}: {held:.0f} B, {peak:.0f} B while read, {left:.0f} B left; {ENTRIES} entries")
    planned = TOKENIZERS[kind]
    assert left * ENTRIES < LEFT_BYTES[kind.endswith("GGUF")]
    assert 0.5 * planned.held < held < planned.held
    assert 0.5 * planned.loading < peak < planned.loading


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if not kind.endswith("GGUF")])
def test_the_kind_of_a_tokenizer_is_read_of_its_file(
    kind: str, is_old: bool, tmp_path: Path
) -> None:
    path = write(kind, 300, tmp_path) / "tokenizer.json"
    document = json.loads(path.read_text())
    if is_old:  # files of tokenizers before 0.10 do not name it
        del document["model"]["type"]
    path.write_text(json.dumps(document, indent=2 if is_old else None))
    assert tokenizer_kind(tmp_path) == kind


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_no_plan_of_xlm_v_is_below_what_its_tokenizer_takes(engine: str) -> None:
    shape, spec = checked_shape(CONFIGS["xlm-v-base"]), parse_adapter("lora:8")
    work = Workload(shape, 4, spec, 4, 64, engine=engine, tokenizer="Unigram")
    by_engine = {"torch": estimate, "onnx": onnx_estimate}[engine]
    least = min(by_engine(work, plan, 100 << 20).total for plan in plans(work, ("float32",)))
    assert least >= (100 << 20) + 901_629 * TOKENIZERS["Unigram"].loading
