import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.simulation.datasets.catalogue import NEWS
from tests.command_line import benchmarks
from tests.conftest import shared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("healthcare:perplexities",), "PAPER:TABLE 'healthcare:perplexities' is not one of"),
        (("healthcare:ner", "rate=1"), "'rate=1': NAME=VALUE is expected, NAME one of: adapter"),
        (("healthcare:ner", "adapter=lora:8+head"), "leave +head out; ner adds it by itself"),
        (("healthcare:ner", "adapter=lara"), "lara"),
    ],
)
def test_what_is_not_known_is_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = benchmarks("paper", *options, "--out", str(tmp_path))
    assert done.exit_code == 2 and said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perplexity", "curve", "personalize", "ner"])
def test_a_quick_one_runs_from_end_to_end_and_is_not_run_again(name: str, tmp_path: Path) -> None:
    data = shared("data", NEWS).parent
    asked = ("paper", f"healthcare:{name}", "--quick", "--json", "--data", str(data))
    first, again = (benchmarks(*asked, "--out", str(tmp_path)) for _ in range(2))
    told, same = (json.loads(done.stdout.splitlines()[-1]) for done in (first, again))
    assert first.exit_code == 0 and told["more"] == same["more"] and same["seconds"] < 20
    assert told["bases"][0]["name"] == "embedded-letters" and told["notes"]
    page = (tmp_path / f"healthcare-{name}" / "table.md").read_text(encoding="utf-8")
    assert "published: Federated healthcare NLU" in page or name == "curve"
