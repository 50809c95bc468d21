"""What a hostile coordinator asks for is bounded on the device: scripted answers, a real client."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.failures import ClientError, GaveUp
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.engine.limits import Limits, OverLimits, parse_limits
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import Terms
from smidgen.edge_client.wire.messages import PROTOCOL, CodedStep, Next, StepOrder, Waiting, Work
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Training
from tests.breadth import first_fast
from tests.edge_client.client.servers import http_server
from tests.edge_client.client.terms import over, terms_for
from tests.edge_client.client.test_enrolment import Home
from tests.edge_client.client.test_loop import Turns

HOSTILE = [
    {"epochs": 10_000},
    {"batch": 4096},
    {"tokens": 8192},
    {"lr": 99.0},
    {"least_samples": 10**9},
]


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task) -> Home:
    home = Home(tmp_path, tiny_base, terms_for(tiny_base, hub_task))
    home.write("labelled", ["text,label", *["the front door opened,security"] * 9])
    return home


@pytest.fixture
def weights(tiny_base: Base) -> bytes:
    return encode_adapter(initial_adapter(parse_adapter("lora:2"), tiny_base, 3, seed=3))


def asked(terms: Terms, weights: bytes, place: int = 1, seed: int = 7, **how: Any) -> Next:
    """A piece of training as a coordinator may ask for it."""
    return Next(
        work=Work(
            *(PROTOCOL, f"work-{place}", "train", "run", place, terms.base_id, terms.adapter_spec),
            *(sha256(weights), len(weights), terms.task, replace(terms.training, **how)),
            seed=seed,
        )
    )


def told(turns: Turns) -> list[tuple[str, str | None, bool]]:
    return [(one.outcome, one.failure, one.is_leaving) for one in turns.told]


@pytest.mark.parametrize("how", HOSTILE)
def test_a_run_whose_terms_are_over_a_limit_is_declined_in_one_line(
    home: Home, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    terms = replace(home.terms, training=replace(Training(), **how))
    with caplog.at_level(logging.ERROR):
        assert Turns([Next(terms=terms)]).serve(home) == [("run", "declined", "limits")]
    ((name, value),) = how.items()
    (said,) = caplog.messages
    assert f"the run asks for {name} {value:.10g}, this device does" in said
    assert said.endswith("; it is looked at again every 5 min while this client runs")


def test_a_device_of_this_run_alone_says_which_limit_and_ends(home: Home) -> None:
    terms = replace(home.terms, training=Training(epochs=10_000))
    turns = Turns([Next(terms=terms), Next(waiting=Waiting("idle"))])
    with pytest.raises(OverLimits, match="epochs 10000"):
        serve(home, turns, Limits())


@pytest.mark.parametrize("how", HOSTILE)
def test_work_that_is_over_a_limit_of_its_run_fails_by_that_name(
    home: Home, weights: bytes, how: dict[str, Any]
) -> None:
    turns = Turns([Next(terms=home.terms), asked(home.terms, weights, **how)], (200, weights))
    turns.serve(home)
    assert told(turns) == [("failed", "limits", True)]


NOISY = "dp-text:0.1:0.5:8.0:1e-05"


@pytest.mark.parametrize(
    ("steps", "noise", "said"),
    [
        ((), "0.1", "no noise, this device asks for 0.1 at least; `--limits` without noise would"),
        ((NOISY,), "2", "a noise multiplier of 0.5, this device asks for 2 at least; `--limits n"),
        (("dp:0.1:0.5:1:8.0:1e-05",), "0.6", "a noise multiplier of 0.5, this device asks for 0"),
        ((NOISY,), "0.5", ""),
    ],
)
def test_a_run_that_adds_less_noise_than_its_owner_asks_for_is_declined_in_one_line(
    home: Home, steps: tuple[str, ...], noise: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    turns = Turns([Next(terms=replace(home.terms, steps=steps)), Next(waiting=Waiting("idle"))])
    caplog.set_level(logging.ERROR)
    with pytest.raises(OverLimits if said else ClientError):  # which ends what fits
        serve(home, turns, parse_limits(f"noise={noise}"))
    assert [said in line for line in caplog.messages] == ([True] if said else [])


def test_work_with_less_noise_than_its_terms_is_not_done(home: Home, weights: bytes) -> None:
    given = asked(home.terms, weights)
    assert given.work is not None
    less = replace(given.work, updates=(StepOrder("dp-text:0.1:0.1:8.0:1e-05"),))
    terms = replace(home.terms, steps=(NOISY,))
    turns = Turns([Next(terms=terms), Next(work=less)], (200, weights))
    with pytest.raises(OverLimits, match=r"a noise multiplier of 0\.1"):
        serve(home, turns, parse_limits("noise=0.5"))
    assert told(turns) == [("failed", "limits", True)]


LONG = 300_000_000


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("adapter", {"adapter_bytes": LONG}),
        ("step", {"steps": (CodedStep("0" * 64, "1" * 64, LONG),)}),
        (
            "state of update step scaffold",
            {"updates": (StepOrder("scaffold", 0, "1" * 64, LONG),)},
        ),
    ],
)
def test_a_file_longer_than_its_adapter_can_be_is_refused_before_it_is_fetched(
    home: Home, weights: bytes, what: str, named: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    order = asked(home.terms, weights)
    assert order.work is not None
    turns = Turns([Next(terms=home.terms), Next(work=replace(order.work, **named))], (200, weights))
    with caplog.at_level(logging.WARNING):
        turns.serve(home)
    [said] = re.findall(
        f"a file of {LONG} bytes as {what}; with adapter .* at most [0-9]+", caplog.text
    )
    print(f"{said}: fetched {turns.fetched} files")
    assert told(turns) == [("failed", "transfer", False)] and turns.fetched == 0
    assert len(weights) < int(said.split()[-1]) < len(weights) + 8192


def test_a_finished_adapter_longer_than_it_can_be_is_not_read(home: Home) -> None:
    body = bytes(LONG)
    turns = Turns([Next(terms=home.terms), *[Next(over=over(sha256(body)))] * 3], (200, body))
    turns.serve(home)
    assert not list(home.state.folder.glob("**/*.safetensors")) and turns.fetched == 3


def serve(home: Home, turns: Turns, limits: Limits, **more: object) -> None:
    with http_server(turns.answer) as url:
        settings = replace(home.settings(url), limits=limits, **more)  # type: ignore[arg-type]
        Client(settings, home.state).run()


def works(home: Home, weights: bytes, count: int, **how: Any) -> Sequence[Next]:
    return [asked(home.terms, weights, place, **how) for place in range(1, count + 1)]


def test_training_ends_between_steps_once_its_time_is_over(home: Home, weights: bytes) -> None:
    short, long = Limits(seconds=1e-9), [asked(home.terms, weights, 1, epochs=90, batch=1)]
    turns = Turns([Next(terms=home.terms), *long], (200, weights))
    with pytest.raises(ClientError, match="does not know"):
        serve(home, turns, short)
    assert told(turns) == [("failed", "limits", False)]


def test_three_that_take_too_long_leave_the_run_by_the_usual_rule(
    home: Home, weights: bytes
) -> None:
    turns = Turns([Next(terms=home.terms), *works(home, weights, 3)], (200, weights))
    with pytest.raises(GaveUp, match=r"3 pieces of work failed .* does 1e-09 s at most"):
        serve(home, turns, Limits(seconds=1e-9))
    assert told(turns) == [("failed", "limits", False)] * 2 + [("failed", "limits", True)]


def test_three_that_take_too_long_do_not_end_a_device_that_waits_for_ever(
    home: Home, weights: bytes
) -> None:
    turns = Turns([Next(terms=home.terms), *works(home, weights, 3)], (200, weights))
    with pytest.raises(ClientError, match="does not know"):
        serve(home, turns, Limits(seconds=1e-9), is_until_finished=False)
    assert [one.is_leaving for one in turns.told] == [False, False, True]


@pytest.mark.parametrize("seed", first_fast([-(2**70), 2**62, 2**63 - 1, -(2**63), 2**64, 2**70]))
def test_any_seed_is_a_seed(home: Home, weights: bytes, seed: int) -> None:
    turns = Turns([Next(terms=home.terms), asked(home.terms, weights, 1, seed)], (200, weights))
    turns.serve(home)
    assert told(turns) == [("done", None, False)]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_adapter_that_gives_no_finite_loss_fails_as_training(
    home: Home, weights: bytes, kind: str, tiny_base: Base
) -> None:
    home.write("test", ["text,label", "the front door opened,security"])
    initial = initial_adapter(parse_adapter("lora:2"), tiny_base, 3, seed=3)
    huge = encode_adapter({name: np.full_like(one, 3e38) for name, one in initial.items()})
    work = asked(home.terms, huge).work
    assert work is not None
    turns = Turns([Next(terms=home.terms), Next(work=replace(work, kind=kind))], (200, huge))  # type: ignore[arg-type]
    turns.serve(home)
    assert told(turns) == [("failed", "training", False)]


def test_a_learning_rate_that_its_owner_allows_ends_in_an_update_or_a_failure_of_training(
    home: Home, weights: bytes
) -> None:
    terms = replace(home.terms, training=Training(lr=99.0))
    turns = Turns([Next(terms=terms), asked(terms, weights)], (200, weights))
    with pytest.raises(ClientError, match="does not know"):
        serve(home, turns, Limits(lr=100))
    ((outcome, failure, is_leaving),) = told(turns)
    assert (outcome, failure) in (("done", None), ("failed", "training")) and not is_leaving
