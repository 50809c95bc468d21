import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from simulation.datasets.silos import NEWS
from tests.command_line import smidgen
from tests.conftest import shared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("perplexities",), "SCENARIO 'perplexities' is not one of perplexity, curve"),
        (("ner", "--search"), "--search is for `perplexity`, not for ner"),
        (("ner", "--adapter", "lora:8+head"), "leave +head out; ner adds it by itself"),
        (("ner", "--adapter", "lara"), "lara"),
    ],
)
def test_what_is_not_known_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = smidgen("simulate", "healthcare", *options, "--out", str(tmp_path))
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perplexity", "curve", "personalize", "ner"])
def test_a_quick_one_runs_from_end_to_end_and_is_not_run_again(name: str, tmp_path: Path) -> None:
    data = shared("data", NEWS).parent
    asked = ("simulate", "healthcare", name, "--quick", "--json", "--data", str(data))
    first, again = (smidgen(*asked, "--out", str(tmp_path)) for _ in range(2))
    told, same = (json.loads(done.stdout.splitlines()[-1]) for done in (first, again))
    assert first.exit_code == 0 and told["more"] == same["more"] and same["seconds"] < 20
    assert told["bases"][0]["name"] == "embedded-letters" and told["notes"]
    page = (tmp_path / f"healthcare-{name}" / "table.md").read_text(encoding="utf-8")
    assert "published: Federated healthcare NLU" in page or name == "curve"
