import pytest

pytest.importorskip("rich")

from profiling.rounds import cost_by_round
from profiling.rounds_report import rounds_table
from tests.profiling.test_rounds import figure


def test_label_columns_are_there_where_devices_labelled() -> None:
    costs = cost_by_round([figure(0, "evaluate", "a", accuracy=0.5)])
    labelled = cost_by_round([figure(1, "label", "a", pseudo_labels=7)])
    assert rounds_table(costs).row_count == 1
    assert [len(rounds_table(found).columns) for found in (costs, labelled)] == [8, 10]
