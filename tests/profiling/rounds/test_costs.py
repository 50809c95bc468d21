import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")

from smidgen.edge_client.wire.reports import Cost
from smidgen.profiling.rounds.costs import FiguresError, cost_by_round, read_figures


def figure(round_index: int, kind: str, device_id: str, **more: Any) -> dict[str, Any]:
    common = {"outcome": "done", "num_examples": 10, "loss": 1.0, "accuracy": None}
    up, down = more.pop("bytes_up", 0), more.pop("bytes_down", 0)
    told = {name: more.pop(name) for name in ("phases_s", "peak_rss_bytes") if name in more}
    cost = asdict(Cost(tcp_up_bytes=up, tcp_down_bytes=down, requests=3, **told))
    place = {"run_id": "r1", "round_index": round_index, "kind": kind, "device_id": device_id}
    return place | common | {"cost": cost} | more


def test_accuracy_is_weighted_by_test_texts() -> None:
    figures = [
        figure(0, "evaluate", "a", num_examples=30, accuracy=0.5),
        figure(0, "evaluate", "b", num_examples=10, accuracy=0.9),
    ]
    assert cost_by_round(figures)[0].accuracy == pytest.approx(0.6)


def test_the_median_client_stands_beside_the_mean() -> None:
    figures = [
        figure(0, "evaluate", "a", num_examples=1000, accuracy=1.0),
        figure(0, "evaluate", "b", accuracy=0.4),
        figure(0, "evaluate", "c", accuracy=0.2),
        figure(0, "evaluate", "d", num_examples=0, accuracy=0.0),
    ]
    assert cost_by_round(figures)[0].accuracy_median == 0.4
    assert cost_by_round(figures[3:])[0].accuracy_median is None


def test_a_round_is_its_clients_median_and_peak() -> None:
    figures = [
        figure(1, "train", name, bytes_up=size, phases_s={"train": size / 10}, peak_rss_bytes=size)
        for name, size in (("a", 10), ("b", 20), ("c", 90))
    ]
    figures.append(figure(1, "train", "d", outcome="failed"))
    (cost,) = cost_by_round(figures)
    assert (cost.bytes_up, cost.peak_rss_bytes, cost.clients, cost.failed) == (20, 90, 3, 1)
    assert cost.phases_s == {"train": 2.0}


def test_a_late_answer_has_its_costs_but_no_say_in_the_mean() -> None:
    figures = [
        figure(1, "train", "a", loss=1.0, bytes_up=10),
        figure(1, "train", "b", loss=9.0, bytes_up=30, is_late=True),
        figure(1, "evaluate", "a", accuracy=0.5),
        figure(1, "evaluate", "b", accuracy=0.9, is_late=True),
    ]
    (cost,) = cost_by_round(figures)
    assert (cost.loss, cost.accuracy, cost.clients, cost.bytes_up) == (1.0, 0.5, 1, 20)


def test_label_work_has_its_own_phase_and_counts() -> None:
    def found(device_id: str, seconds: float, **more: Any) -> dict[str, Any]:
        return figure(1, "label", device_id, phases_s={"label": seconds, "load": 9.0}, **more)

    figures = [
        found("a", 2.0, pseudo_labels=3, layer_forwards=10),
        found("b", 4.0, pseudo_labels=5, layer_forwards=30, is_late=True),
        figure(1, "train", "a", phases_s={"train": 1.0, "load": 0.5}, layer_forwards=50),
    ]
    (cost,) = cost_by_round(figures)
    assert (cost.labellers, cost.pseudo_labels, cost.layer_forwards) == (1, 3, 45)
    assert cost.phases_s == {"load": 0.5, "label": 3.0, "train": 1.0}


def test_a_line_that_is_no_figure_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(json.dumps(figure(0, "evaluate", "a")) + "\n{}\n")
    with pytest.raises(FiguresError, match=r"rounds\.jsonl, line 2"):
        read_figures(path)


@pytest.mark.parametrize(
    "wrong", [{"round_index": "x"}, {"num_examples": "many"}, {"entities": 3}, {"device_id": None}]
)
def test_a_line_of_another_kind_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(json.dumps(figure(0, "evaluate", "a") | wrong) + "\n")
    with pytest.raises(FiguresError, match=r"rounds\.jsonl, line 1"):
        read_figures(path)


@pytest.mark.parametrize("kind", ["evaluate", "train", "label"])
def test_a_line_may_leave_out_what_is_not_measured(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rounds.jsonl"
    least = {"run_id": "r", "round_index": 1, "kind": kind, "device_id": "d", "outcome": "done"}
    path.write_text(json.dumps(least | {"cost": {}, "accuracy": 0.5}) + "\n")
    (cost,) = cost_by_round(read_figures(path))
    assert cost.accuracy is None and cost.bytes_up == 0


def test_a_run_without_figures_is_told(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text("")
    with pytest.raises(FiguresError, match="no figures yet"):
        read_figures(tmp_path / "rounds.jsonl")


FOUND = {"there": [3, 1], "found": [3, 0], "strict": [2, 0], "typed": 2, "partial_halves": 5}
NONE = {"there": [0, 0], "found": [0, 0], "strict": [0, 0], "typed": 0, "partial_halves": 0}


def test_of_tagging_a_round_has_its_f1_and_goes_by_it() -> None:
    figures = [
        figure(0, "evaluate", "a", accuracy=0.9, entities=FOUND),
        figure(0, "evaluate", "b", accuracy=0.9, entities=FOUND | {"strict": [3, 0], "typed": 3}),
        figure(0, "evaluate", "c", accuracy=0.9, entities=NONE),
    ]
    (cost,) = cost_by_round(figures)
    assert cost.f1 is not None and cost.score == cost.f1.strict == 10 / 14
    assert cost.f1.by_type == (10 / 12, 0.0)
    assert cost.accuracy_median == pytest.approx((4 / 7 + 6 / 7) / 2)
    assert cost.accuracy == pytest.approx(0.9) and cost.perplexity is None


def test_of_masked_words_a_round_has_a_perplexity() -> None:
    figures = [figure(0, "evaluate", "a", accuracy=0.5, loss=2.0, task="mlm")]
    (cost,) = cost_by_round(figures)
    assert cost.perplexity == pytest.approx(7.389056) and cost.score == 0.5
    (other,) = cost_by_round([figures[0] | {"task": "labels"}])
    assert other.perplexity is None and other.score == 0.5
