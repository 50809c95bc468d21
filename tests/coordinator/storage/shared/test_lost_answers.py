"""A commit that PostgreSQL has carried out and nobody has heard of."""

import time
from contextlib import closing
from dataclasses import replace

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Answered, Resumed, StepOpened
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from tests.coordinator.servers import Postgres
from tests.coordinator.storage.shared.proxies import LosingAnswers


def test_a_run_goes_on_after_a_commit_whose_answer_was_lost(
    place: StorePlace, postgres: Postgres, config: RunConfig
) -> None:
    with closing(LosingAnswers(postgres.port)) as way:
        database = place.database.replace(f":{postgres.port}/", f":{way.port}/")
        with closing(Store(replace(place, database=database))) as store:
            run = create_run(store, config, 1.0)
            ledger = Ledger(store, time.time())
            (live,) = ledger.all()
            asked = StepOpened("train", 1, 1, live.state.adapter_sha256, (("w1", "a"),), 1.0)
            way.is_losing = True
            with pytest.raises(DatabaseAway):
                ledger.append(live, asked)
            assert not ledger.append(live, Resumed(2.0))  # decided anew, on what is there
            (live,) = ledger.all()
            assert live.state.step is not None and live.works == {"a": "w1"}
            answer = Answered("w1", "done", "b" * 64, 3)
            way.is_losing = True
            with pytest.raises(DatabaseAway):
                ledger.answer(run.run_id, answer)
            assert ledger.answer(run.run_id, answer).accepted  # sent again; counts once
            assert ledger.append(ledger.all()[0], Resumed(3.0))
            kinds = [type(one) for one in store.events(run.run_id)]
            assert kinds == [StepOpened, Answered, Resumed]
