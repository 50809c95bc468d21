"""Texts read in int8 get the answers they get in float32: real bases, real news."""

from pathlib import Path

import numpy as np

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.engine.onnx_backend.quick_inference import AGREEMENT, agreement
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_file
from smidgen.edge_client.texts.parts import ANY
from smidgen.edge_client.wire.training import Training
from tests.conftest import shared
from tests.edge_client.engine.engines import needs_int8

TASK = Path(__file__).parents[2] / "docs" / "examples" / "agnews.toml"


@needs_int8
def test_int8_gives_the_answers_of_float32_on_news(real_base: Base, tmp_path: Path) -> None:
    news = read_file(shared("data", "ag_news") / "test.csv.gz", ANY, labelled=False)[:300]
    pack_model(str(real_base.folder), 8, tmp_path / "pack")
    base, training = open_base(str(tmp_path / "pack")), Training(tokens=96)
    engine = open_engine("onnx", base, read_task(TASK), parse_adapter("lora:4"), training)
    exact, quick = engine._answers(news, False), engine._answers(news, True)
    share = agreement(exact, quick)
    print(
        f"\n{real_base.name}: int8 agrees with float32 on {100 * share:.1f} % of {len(news)} texts"
    )
    assert share >= AGREEMENT
    assert np.abs(np.exp(exact) - np.exp(quick)).max() < 2e-3 and (exact != quick).any()
