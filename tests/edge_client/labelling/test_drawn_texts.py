from edge_client.client.answers import drawn


def test_of_a_class_that_is_capped_gold_labels_are_drawn_first() -> None:
    labels = ["a"] * 4 + ["b"] + ["a"] * 40 + ["b"]  # five gold ones, then pseudo-labels
    for seed in range(5):
        rows = drawn(labels, 5, 8, seed)
        assert rows[:5] == [0, 1, 2, 3, 4] and rows[-1] == 45 and len(rows) == 10
        assert rows == drawn(labels, 5, 8, seed)
    assert len({tuple(drawn(labels, 5, 8, seed)) for seed in range(5)}) > 1
    assert drawn(labels, 5, 0, 1) == list(range(46))
