"""What a device does next, whatever its coordinator answers: a real client, scripted answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.bases.base import Base
from edge_client.client.loop import Client
from edge_client.client.state import Answer as Kept
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Report, decode
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import terms_for
from tests.edge_client.client.test_enrolment import Gate, Home


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task) -> Iterator[Home]:
    home = Home(tmp_path, tiny_base, terms_for(tiny_base, hub_task))
    home.write("labelled", ["text,label", "the front door opened,security"])
    yield home


def test_what_made_an_earlier_life_leave_does_not_make_the_next_one_leave(home: Home) -> None:
    home.state.keep_finished(Kept(Report("w", "failed", failure="disk", is_leaving=True), None))
    gate, told = Gate(home.terms), []

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.endswith("/report"):
            told.append(decode(body, Report))
            return 200, b'{"accepted": true}'
        return gate.answer(method, path, body)

    with http_server(answer) as url:
        Client(home.settings(url), home.state).run()
    assert [(one.failure, one.is_leaving) for one in told] == [("disk", False)]
