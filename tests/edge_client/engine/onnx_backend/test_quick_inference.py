import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.onnx_backend.quick_inference import (
    CHECKED,
    WORTH,
    QuickInference,
    agreement,
    has_int8,
    is_worth,
)
from smidgen.edge_client.texts.examples import Example

TEXTS = [Example(f"text {number}") for number in range(WORTH)]


class Reader:
    """Answers 0 to every text; read quickly, 1 to every `wrong_every`-th of them."""

    def __init__(self, wrong_every: int = 10**6, is_able: bool = True) -> None:
        self.calls: list[tuple[int, bool]] = []
        self._wrong_every, self._is_able = wrong_every, is_able

    def __call__(self, examples: Sequence[Example], is_quick: bool) -> np.ndarray:
        if is_quick and not self._is_able:
            raise EngineError("no such kernel")
        self.calls.append((len(examples), is_quick))
        rows = np.tile(np.array([-0.1, -2.0], np.float32), (len(examples), 1))
        if is_quick:
            rows[:: self._wrong_every] = rows[:: self._wrong_every, ::-1]
            rows[0] = [-0.1, -2.0]
        return rows


def test_a_long_list_is_read_quickly_after_some_of_it_agreed() -> None:
    reader = Reader()
    assert QuickInference(True).predict(TEXTS, reader).shape == (WORTH, 2)
    assert reader.calls == [(CHECKED, False), (CHECKED, True), (WORTH - CHECKED, True)]


def test_a_short_list_is_read_exactly() -> None:
    reader = Reader()
    QuickInference(True).predict(TEXTS[:-1], reader)
    assert reader.calls == [(WORTH - 1, False)]


def test_nothing_is_read_quickly_where_it_cannot_be() -> None:
    reader = Reader()
    QuickInference(False).predict(TEXTS, reader)
    assert reader.calls == [(WORTH, False)]


def test_answers_that_change_are_told_once_and_read_exactly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = Reader(wrong_every=20)
    quick = QuickInference(True)
    with caplog.at_level(logging.WARNING):
        rows = quick.predict(TEXTS, reader)
        quick.predict(TEXTS, reader)
    assert (rows.argmax(axis=1) == 0).all() and reader.calls[2] == (WORTH - CHECKED, False)
    assert [record.message for record in caplog.records] == [
        "texts are read in float32: int8 agrees on 95.5 % of them only"
    ]


def test_a_runtime_without_the_kernels_falls_back_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quick, reader = QuickInference(True), Reader(is_able=False)
    with caplog.at_level(logging.WARNING):
        assert len(quick.predict(TEXTS, reader)) == len(quick.predict(TEXTS, reader)) == WORTH
    assert [record.message for record in caplog.records] == [
        "texts are read in float32: no such kernel"
    ]


def test_narrow_bases_and_other_packs_are_read_exactly(tiny_base: Base) -> None:
    flags, wide = {"avx512_vnni"}, replace(tiny_base.shape, hidden=384)
    assert is_worth(replace(tiny_base, bits=8, shape=wide), flags)
    assert not is_worth(replace(tiny_base, bits=4, shape=wide), flags)
    assert not is_worth(replace(tiny_base, bits=8), flags)
    assert not is_worth(replace(tiny_base, bits=8, shape=wide), {"avx2"})


def test_agreement_is_of_labels_and_int8_is_the_processors() -> None:
    exact = np.log(np.array([[0.9, 0.1], [0.4, 0.6]]))
    assert agreement(exact, exact[:, ::-1]) == 0.0 and agreement(exact, exact * 2) == 1.0
    assert has_int8({"avx2", "avx512_vnni"}) and not has_int8({"avx2", "asimd"})
