"""A soft prompt with a head, by one device alone: trained, scored, asked, and made its own."""

from pathlib import Path

import pytest

import smidgen
from smidgen.edge_client.adapters.peft_folder import OWN_WEIGHTS
from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import LABELLED, client, train, write_data
from tests.edge_client.commands.kinds.texts import last_object, tagging_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_data(tmp_path_factory.mktemp("soft") / "data")
    (folder / "labelled.csv").write_text(f"{LABELLED}4,snow,weather\n")  # enough to keep one aside
    return folder


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, data: Path) -> Path:
    done = train(tiny_base, data, data.parent / "out", "--adapter", "prompt:4+head")
    assert done.exit_code == 0, done.output
    return data.parent / "out"


def test_it_answers_and_is_scored_as_training_scored_it(
    tiny_base: Base, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    trained = last_object(train(tiny_base, data, out, "--adapter", "prompt:4+head", "--json"))
    assert (out / OWN_WEIGHTS).is_file() and not (out / "adapter_config.json").exists()
    told = client("evaluate", tiny_base, "--data", data, "--adapter", out, "--json")
    assert last_object(told)["accuracy"] == trained["accuracy_after"]


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["tuned", "interpolated"])
def test_it_is_trained_on_as_ones_own(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path, method: str
) -> None:
    known = {"base": str(tiny_base.folder), "engine": "onnx", "method": method}
    own = smidgen.personalize(data, tmp_path / "own", shared=adapter, epochs=1, **known)  # type: ignore[arg-type]
    assert own.adapter == "prompt:4+head" and own.accuracy_shared is not None
    (read,) = smidgen.predict(["rain"], tmp_path / "own", base=tiny_base.folder, engine="onnx")
    assert read.label in ("security", "weather")


def test_a_tagger_behind_a_soft_prompt_reads_long_texts(tiny_base: Base, tmp_path: Path) -> None:
    folder = tagging_data(tmp_path / "data")
    done = train(tiny_base, folder, tmp_path / "out", "--adapter", "prompt:4+head")
    assert done.exit_code == 0 and (tmp_path / "out" / "adapter_config.json").is_file()
    (told,) = smidgen.tag(["rain " * 300], tmp_path / "out", base=tiny_base.folder, engine="onnx")
    assert len(told.tags) == 300
