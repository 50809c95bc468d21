import gzip
from pathlib import Path

import pytest

from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, MNLI, YAHOO
from smidgen.edge_client.texts.prompts.patterns import MASK
from smidgen.simulation.datasets.catalogue import read_dataset
from smidgen.simulation.datasets.dataset import AG_NEWS_PAIR, MNLI_QUOTED, YAHOO_PAIR
from smidgen.simulation.datasets.hub import LAYOUTS


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(gzip.compress(text.encode(), mtime=0))


@pytest.mark.parametrize(
    ("head", "is_pair"), [("label,title,text", True), ("label,headline,text", False)]
)
def test_news_keeps_title_and_text_apart_where_every_row_has_both(
    tmp_path: Path, head: str, is_pair: bool
) -> None:
    write(tmp_path / "ag_news", "train.csv.gz", f"{head}\nsports,Cup,They won\nworld,War,Over\n")
    write(tmp_path / "ag_news", "test.csv.gz", "label,title,text\nsports,Ball,They lost\n")
    data = read_dataset("ag_news", tmp_path)
    assert data.task == (AG_NEWS_PAIR if is_pair else AG_NEWS)
    example = data.test[0]
    pair, joined = ("Ball", "They lost"), ("Ball They lost", "")
    assert (example.text, example.text_b) == (pair if is_pair else joined)
    assert any("two fields" in note for note in data.notes) == is_pair


def test_a_question_and_its_answer_are_asked_by_the_papers_pattern(tmp_path: Path) -> None:
    rows = [f"{label},Why {n}?,So {n}" for label in YAHOO.labels for n in range(4)]
    body = "\n".join(["label,question,answer", *rows, ""])
    write(tmp_path / "yahoo_answers", "dev_10class_1k.csv.gz", body)
    data = read_dataset("yahoo_answers", tmp_path)
    assert data.task.asked() == ("[ category : ] {text_a} [MASK] {text_b}",)
    assert {(e.text[:3], e.text_b[:2]) for e in data.train} == {("Why", "So")}


def test_the_hubs_question_and_answer_stay_two_fields() -> None:
    layout = LAYOUTS["community-datasets/yahoo_answers_topics"]
    assert (layout.text_b, layout.task) == ("best_answer", YAHOO_PAIR)
    assert LAYOUTS["nyu-mll/glue"].task.asked() == ('" {text_a} " ? [MASK] , " {text_b} "',)


def test_every_pattern_of_two_fields_holds_both_and_none_is_lost() -> None:
    for task in (AG_NEWS_PAIR, YAHOO_PAIR, MNLI_QUOTED):
        for pattern in task.patterns:
            assert "{text_a}" in pattern and "{text_b}" in pattern and MASK in pattern
    assert sorted(MNLI_QUOTED.patterns) == sorted(MNLI.patterns)
    assert len(YAHOO_PAIR.patterns) == len(YAHOO.patterns) + 1
