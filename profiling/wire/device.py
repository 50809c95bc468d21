"""A device without compute: the client's own transport and state folder; training adds 0.01.

It makes the client loop's calls around its engine, in the same order: downloads are kept, and
answers are in the outbox before they are sent. It has no texts to evaluate on, and says so at once.
It prints a JSON line when it gets work.

    python -m smidgen.profiling.wire.device '{"url": "http://...", "token": "...", ...}'
"""

import json
import math
import platform
import signal
import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import smidgen.edge_client.client.loop  # noqa: F401 - what a client holds in memory, but for an engine
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, FinishedWork, Identity
from smidgen.edge_client.client.transport import Coordinator, patiently
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.planning.resources import memory_bytes, usable_cores
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol, Membership, draw_key
from smidgen.edge_client.wire.messages import PROTOCOL, Report, Work
from smidgen.edge_client.wire.tensors import AdapterState, Update, decode_adapter, encode_update
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.profiling.instruments.stepping import tell


def take_part(url: str, token: str, name: str, folder: str) -> NoReturn:
    """Serve a run until it is finished, and then wait to be ended.

    Args:
        url: Of the coordinator, or of a relay before it.
        token: Enrolment token.
        name: The device's own.
        folder: Its state folder; made.
    """
    state = ClientState(Path(folder))
    state.keep_identity(Identity(url, draw_key()))
    known = state.identity()
    assert known is not None
    wait_s = 0.0  # at first, as the client loop does
    with closing(Coordinator(url, known.key)) as coordinator:
        coordinator.enrol(Enrol(PROTOCOL, name, _facts(), token))
        while True:
            meter = WorkMeter(coordinator.traffic)
            with meter.phase("wait"):
                given = patiently(partial(coordinator.next_work, wait_s, meter), math.inf)
            now_s, wait_s = time.monotonic(), Settings.wait_s
            if given.terms is not None:
                state.joined.keep(given.terms)
                coordinator.membership(given.terms.run_id, Membership("joined"))
                wait_s = 0.0
            if given.over is not None:
                tell("over", at_s=now_s)
                signal.pause()  # until it is ended: what it has used is still to be read
            if given.work is not None:
                work = given.work
                tell("work", kind=work.kind, round_index=work.round_index, at_s=now_s)
                _serve(coordinator, state, work, meter)


def _facts() -> DeviceFacts:
    python = platform.python_version()
    return DeviceFacts(platform.machine(), usable_cores(), memory_bytes(), python, "")


def _serve(coordinator: Coordinator, state: ClientState, work: Work, meter: WorkMeter) -> None:
    with meter.working():
        with meter.phase("download"):
            body = _adapter(coordinator, state, work.adapter_sha256, meter)
        adapter = decode_adapter(body)
        finished = answer(work, adapter)
    report, update = replace(finished.report, cost=meter.cost()), finished.update
    state.keep_finished(FinishedWork(report, update))
    if update is not None:
        with meter.phase("upload"):
            patiently(lambda: coordinator.upload(report.work_id, update, meter), math.inf)
    report = replace(report, cost=meter.cost())
    patiently(lambda: coordinator.report(report, meter, Settings.wait_s), math.inf)
    state.forget_finished(report.work_id)


def _adapter(coordinator: Coordinator, state: ClientState, digest: str, meter: WorkMeter) -> bytes:
    body = state.adapter(digest)
    if body is None:
        body = patiently(lambda: coordinator.adapter(digest, meter), math.inf)
        state.keep_adapter(digest, body)
    return body


def answer(work: Work, adapter: AdapterState) -> FinishedWork:
    """An update of 0.01 everywhere, or an evaluation on no texts."""
    if work.kind != "train":
        return FinishedWork(Report(work.work_id, "done", labelled=1), None)
    delta = {name: (tensor + ADDED) - tensor for name, tensor in adapter.items()}
    update = encode_update(Update(work.work_id, 1, delta))
    return FinishedWork(Report(work.work_id, "done", 1, 0.0), update)


if __name__ == "__main__":
    take_part(**json.loads(sys.argv[1]))
