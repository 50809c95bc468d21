from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.engine.limits import (
    BOUNDED,
    Limits,
    OutOfTime,
    OverLimits,
    Watched,
    limits_in_words,
    parse_limits,
)
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.training import Training


def test_limits_are_typed_as_a_list_and_the_rest_stays() -> None:
    found = parse_limits("epochs=20, lr=0.5,seconds=3600")
    assert found == replace(Limits(), epochs=20, lr=0.5, seconds=3600)
    assert parse_limits("") == Limits()


@given(st.builds(Limits, *[st.integers(1, 10**6)] * 7))
def test_limits_are_read_as_they_are_told(limits: Limits) -> None:
    told = ",".join(f"{name}={value}" for name, value in asdict(limits).items())
    assert parse_limits(told) == limits
    assert parse_limits(limits_in_words(Limits())) == Limits()


@pytest.mark.parametrize(
    "said",
    [
        "epochs",
        "epochs=",
        "epochs=x",
        "epochs=nan",
        "epochs=inf",
        "epochs=0",
        "lr=-1",
        "ranks=8",
        "rank=0",
        "rank=-4",
        ",",
        "epochs=1,",
        "epochs=1,epochs=2",
        "seconds=1e300",
        "\x1b[31m=1",
        "=",
        "epochs==1",
    ],
)
def test_other_limits_end_in_one_line(said: str) -> None:
    with pytest.raises(WrongInput, match="--limits") as found:
        parse_limits(said)
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    "asked",
    [
        *({"epochs": 10_000}, {"batch": 4096}, {"tokens": 8192}, {"lr": 99.0}),
        *({"least_samples": 10_001}, {"least_samples": 10**9}),
    ],
)
def test_training_over_a_limit_is_refused_by_its_name(asked: dict[str, Any]) -> None:
    ((name, value),) = asked.items()
    with pytest.raises(OverLimits, match=f"asks for {name} {value:.10g}, this device does"):
        Limits().check(replace(Training(), **asked))
    Limits(**{BOUNDED[name]: value}).check(replace(Training(), **asked))


def test_work_ends_at_the_first_step_after_its_time() -> None:
    at_s, heard = iter([0.0, 9.0, 10.0, 10.1]), list[int]()
    watched = Watched(10.0, heard.append, lambda: next(at_s))
    watched(1)
    watched(2)
    with pytest.raises(OutOfTime, match="this device does 10 s at most"):
        watched(3)
    assert heard == [1, 2, 3]
