"""What a device reports of its training is in the journal where the choice goes by it."""

from collections.abc import Callable

import pytest

from smidgen.coordinator.rounds.events import LossTold, StepOpened
from smidgen.coordinator.rounds.extensions import Extension, add, apart
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.selection import Asking, Chosen
from smidgen.coordinator.storage.reports import reports
from smidgen.edge_client.wire.messages import Report
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for


def is_training(live: Live) -> bool:
    step = live.service.run(live.run_id).state.step
    return step is not None and step.opened.kind == "train"


@pytest.mark.few(2)
@pytest.mark.parametrize("policy", ["utility", "random", "memory", "balance:site"])
def test_only_utility_keeps_the_losses_and_all_say_who_is_not_asked(
    start: Callable[..., Live], policy: str
) -> None:
    live = start(learning=Learning(selection=policy), max_cohort=1, min_clients=2, rounds=1)
    devices = live.evaluated("a", "b")
    wait_for(lambda: is_training(live))
    step = live.service.run(live.run_id).state.step
    assert step is not None
    (device,) = (one for one in devices if one.device_id in step.members.values())
    work = device.work()
    device.do(work)
    for loss in (1.0, 2.0, 3.0):  # said again: its report is known
        assert device.report(Report(work.work_id, "done", 8, loss=loss)).accepted
    device.report(Report(work.work_id, "failed", loss=4.0, failure="memory"))
    events = list(live.store.journal(live.run_id))
    losses = [one for one in events if isinstance(one, LossTold)]
    assert losses == ([LossTold(device.device_id, 1.0)] if policy == "utility" else [])
    (opened,) = (one for one in events if isinstance(one, StepOpened) and one.kind == "train")
    assert sum(one.count for one in opened.passed) == 1


def test_training_that_failed_tells_no_loss(start: Callable[..., Live]) -> None:
    live = start(learning=Learning(selection="utility"), min_clients=1, rounds=1)
    (device,) = live.join("a")
    device.do(device.work())
    work = device.work()
    assert device.report(Report(work.work_id, "failed", loss=4.0, failure="memory")).accepted
    assert not any(isinstance(one, LossTold) for one in live.store.journal(live.run_id))
    assert [row["work_id"] for row in reports(live.store.database, live.run_id)][-1] == work.work_id


def test_a_policy_of_an_extension_is_told_the_losses(start: Callable[..., Live]) -> None:
    seen: dict[int, dict[str, float | None]] = {}

    class Hardest:
        def choose(self, asking: Asking) -> Chosen:
            seen[asking.round_index] = {name: one.loss for name, one in asking.heard.items()}
            return tuple(asking.candidates[: asking.size]), {}

    with apart():
        add(Extension("selection", "hardest", "ideas/hardest.py", Hardest))
        live = start(learning=Learning(selection="hardest"), rounds=3, min_clients=1)
        (device,) = live.join("a")
        while len(seen) < 3:
            device.do(device.work())
    # Round 2 may open between a device's update and its report.
    assert seen[1] == {} and seen[3] == {device.device_id: 1.0}
    assert LossTold(device.device_id, 1.0) in list(live.store.journal(live.run_id))
