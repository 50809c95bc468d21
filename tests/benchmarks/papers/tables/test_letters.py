import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.papers.tables.silos import lettered
from smidgen.edge_client.bases.base import EMBEDDED, Base, open_base
from smidgen.edge_client.engine.opening import unplanned
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.stage import TOKENIZER
from smidgen.simulation.experiments.virtual.full_backend import FullBackend

WORDS = Task("words", kind="mlm")
TRAINING = Training(lr=1e-3, tokens=32)
HEBREW, ARABIC = "בגוף בריא לכליות", "لم تكن هناك، دموع؟"


def test_no_word_of_these_scripts_is_unknown_any_more(tmp_path: Path) -> None:
    base = open_base(EMBEDDED)
    more = open_base(str(lettered(base, tmp_path)))
    for text in (HEBREW, ARABIC):
        before, after = Tokens(base.folder), Tokens(more.folder)
        assert before.unknown_id in before.first_ids(text, 64)
        assert after.unknown_id not in after.first_ids(text, 64)
    english = "a peaceful transition of power"
    assert Tokens(more.folder).first_ids(english, 64) == before.first_ids(english, 64)
    assert more.shape.vocabulary > base.shape.vocabulary


def test_letters_share_what_the_unknown_token_had(tiny_base: Base, tmp_path: Path) -> None:
    more = open_base(str(lettered(tiny_base, tmp_path)))
    backends = [FullBackend(one, WORDS, False, [], TRAINING, 0) for one in (tiny_base, more)]
    encoder, plan = Encoder(Tokens(more.folder), WORDS, True, 32), unplanned(more.shape, TRAINING)
    batch = encoder.batch(encoder.prompts([Example("the power of mail")]))
    few, many = (np.exp(backend.read(batch, plan, None, False)[1]) for backend in backends)
    rows = tiny_base.shape.vocabulary
    unknown = encoder.tokens.unknown_id
    known = np.arange(rows) != unknown
    np.testing.assert_allclose(many[:, :rows][:, known], few[:, known], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        many[:, unknown] + many[:, rows:].sum(axis=1), few[:, unknown], rtol=1e-4
    )


def test_a_base_that_knows_all_letters_stays_where_it_is(tiny_base: Base, tmp_path: Path) -> None:
    folder = lettered(tiny_base, tmp_path)
    assert folder.parent == tmp_path
    more = open_base(str(folder))
    assert lettered(more, tmp_path / "again") == folder
    assert open_base(str(lettered(tiny_base, tmp_path))).base_id == more.base_id


def test_a_tokenizer_of_another_kind_is_left_alone(tiny_base: Base, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for path in tiny_base.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    told = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    told["model"] = {"type": "Unigram", "vocab": [["a", 0.0]]}
    base = open_base(str(folder))
    (folder / TOKENIZER).write_text(json.dumps(told))
    assert lettered(base, tmp_path / "out") == base.folder
