"""Tiny devices without a model: they speak the wire and send deltas that a hash gives."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import httpx
import numpy as np

from smidgen.edge_client.wire import messages
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol, Enrolled, Membership, Terms
from smidgen.edge_client.wire.messages import Next, Over, Receipt, Report, Waiting, Work
from smidgen.edge_client.wire.reports import Cost, counted
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    digest_header,
    encode_update,
    sha256,
)
from smidgen.edge_client.wire.training import keep_of

FACTS = DeviceFacts("test", 1, 1 << 30, "3.11", "0")


def key_of(name: str) -> str:
    """A key that is the same in every run of a test, so that seeds and cohorts are."""
    return "k" + hashlib.sha256(name.encode()).hexdigest()


@dataclass
class Device:
    """One enrolled device.

    Attributes:
        http: A client with the coordinator's address; shared, not closed here.
        key: Its key.
        enrolled: What the coordinator said.
    """

    http: httpx.Client
    key: str
    enrolled: Enrolled

    @property
    def name(self) -> str:
        return self.enrolled.name

    @property
    def device_id(self) -> str:
        return self.enrolled.device_id

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def poll(self, wait_s: float = 0.0) -> httpx.Response:
        return self.http.get(f"/v1/work?wait_s={wait_s}", headers=self.headers)

    def next(self, wait_s: float = 0.0) -> Next:
        response = self.poll(wait_s)
        assert response.status_code == 200, response.text
        return messages.decode(response.content, Next)

    def tell(self, run_id: str, told: Membership) -> httpx.Response:
        path = f"/v1/runs/{run_id}/membership"
        return self.http.post(path, content=messages.encode(told), headers=self.headers)

    def join(self) -> list[Terms]:
        """Join every run that asks for this device; their terms."""
        found: list[Terms] = []
        while terms := self.next().terms:
            assert self.tell(terms.run_id, Membership("joined")).json()["accepted"]
            found.append(terms)
        return found

    def waiting(self) -> Waiting:
        """What is waited for."""
        given = self.next()
        assert given.waiting is not None, given
        return given.waiting

    def work(self, wait_s: float = 50.0) -> Work:
        given = self.next(wait_s)
        assert given.work is not None, given
        return given.work

    def over(self, wait_s: float = 50.0) -> Over:
        given = self.next(wait_s)
        assert given.over is not None, given
        return given.over

    def adapter(self, work: Work) -> AdapterState:
        path = f"/v1/adapters/{work.adapter_sha256}"
        return decode_adapter(self.http.get(path, headers=self.headers).content)

    def update(self, work: Work) -> bytes:
        """The same bytes for the same device and round, whatever the work is called."""
        name = f"{self.name}/{work.round_index}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        draw = np.random.Generator(np.random.PCG64(seed))
        shapes = {key: tensor.shape for key, tensor in self.adapter(work).items()}
        delta = {key: draw.normal(0, 0.1, shapes[key]).astype(np.float32) for key in sorted(shapes)}
        return encode_update(Update(work.work_id, int(draw.integers(1, 50)), delta))

    def put(self, work_id: str, body: bytes, digest: str | None = None) -> httpx.Response:
        digest = digest_header(sha256(body)) if digest is None else digest
        headers = self.headers | {"Repr-Digest": digest}
        return self.http.put(f"/v1/work/{work_id}/update", content=body, headers=headers)

    def report(self, report: Report, patience_s: float = 0.0, wait_s: float = 0.0) -> Receipt:
        """Hand a report in; as a client does, again for so long while the store is away (503)."""
        path, end_s = f"/v1/work/{report.work_id}/report", time.monotonic() + patience_s
        path += f"?wait_s={wait_s:g}" if wait_s else ""
        content = messages.encode(report)
        response = self.http.post(path, content=content, headers=self.headers)
        while response.status_code == 503 and time.monotonic() < end_s:
            time.sleep(0.2)
            response = self.http.post(path, content=content, headers=self.headers)
        assert response.status_code == 200, response.text
        return messages.decode(response.content, Receipt)

    def labelled(self, work: Work) -> Report:
        """A device with two gold texts and 30 others, sure of all; it holds as many as it may."""
        assert work.labelling is not None
        held, labels = keep_of(work.labelling, work.keep, 30), len(work.task.labels)
        told = counted(30, [index % labels for index in range(30)], [0.95] * 30, labels)
        report = Report(work.work_id, "done", 30, layer_forwards=60, confidences=told)
        return replace(report, labelled=2, pseudo_labels=held)

    def do(self, work: Work) -> None:
        """Do one piece of work and answer it."""
        if work.kind == "train":
            assert self.put(work.work_id, self.update(work)).status_code == 200
            cost = Cost(payload_up_bytes=100, tcp_up_bytes=400, requests=3)
            self.report(Report(work.work_id, "done", 8, loss=1.0, cost=cost))
        elif work.kind == "label":
            self.report(self.labelled(work))
        else:
            self.report(Report(work.work_id, "done", 4, accuracy=0.25 * min(4, work.round_index)))

    def until_finished(self, within_s: float = 120.0) -> int:
        """Join, work, and take the adapter home; the number of pieces of work done."""
        done, end = 0, time.monotonic() + within_s
        while (given := self.next(5.0)).over is None:
            assert time.monotonic() < end
            if given.terms is not None:
                self.tell(given.terms.run_id, Membership("joined"))
            if given.work is not None:
                self.do(given.work)
                done += 1
        assert self.tell(given.over.run_id, Membership("home")).json()["accepted"]
        return done


def enrol(
    http: httpx.Client,
    token: str,
    name: str,
    key: str = "",
    tags: Mapping[str, str] | None = None,
    facts: DeviceFacts = FACTS,
) -> Device:
    """Enrol a device, which has not joined a run by that."""
    key = key or key_of(name)
    response = ask_to_enrol(http, token, name, key, tags, facts)
    assert response.status_code == 200, response.text
    return Device(http, key, messages.decode(response.content, Enrolled))


def ask_to_enrol(
    http: httpx.Client,
    token: str,
    name: str,
    key: str,
    tags: Mapping[str, str] | None = None,
    facts: DeviceFacts = FACTS,
    life: str = "",
) -> httpx.Response:
    message = Enrol(messages.PROTOCOL, name, facts, token, dict(tags or {}), life)
    headers = {"Authorization": f"Bearer {key}"}
    return http.post("/v1/enrol", content=messages.encode(message), headers=headers)


def joined(http: httpx.Client, token: str, name: str) -> Device:
    """A device that has joined every run that asks for it."""
    device = enrol(http, token, name)
    device.join()
    return device


def wait_for(done: Callable[[], bool], within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)
