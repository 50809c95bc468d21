"""Tiny devices without a model: they speak the wire and send deltas that a hash gives."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import httpx
import numpy as np

from edge_client.wire import messages
from edge_client.wire.confidences import counted
from edge_client.wire.cost import Cost
from edge_client.wire.labelling import keep_of
from edge_client.wire.messages import Enrol, Enrolled, Over, Receipt, Report, Waiting, Work
from edge_client.wire.tensors import (
    AdapterState,
    Update,
    content_digest,
    decode_adapter,
    encode_update,
)

FACTS = messages.DeviceFacts("test", 1, 1, "3.11", "0")


@dataclass
class Device:
    """One enrolled device.

    Attributes:
        http: A client with the coordinator's address; shared, not closed here.
        enrolled: What the coordinator said.
    """

    http: httpx.Client
    enrolled: Enrolled

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.enrolled.device_key}"}

    def poll(self, wait_s: float = 0.0, have: str = "") -> httpx.Response:
        return self.http.get(f"/v1/work?wait_s={wait_s}&have={have}", headers=self.headers)

    def waiting(self) -> Waiting:
        """What the run waits for."""
        response = self.poll()
        assert response.status_code == 202, response.text
        return messages.decode(response.content, Waiting)

    def work(self, wait_s: float = 10.0) -> Work:
        response = self.poll(wait_s)
        assert response.status_code == 200, response.text
        return messages.decode(response.content, Work)

    def adapter(self, work: Work) -> AdapterState:
        path = f"/v1/adapters/{work.adapter_sha256}"
        return decode_adapter(self.http.get(path, headers=self.headers).content)

    def update(self, work: Work) -> bytes:
        """The same bytes for the same device and round, whatever the work is called."""
        name = f"{self.enrolled.device_id}/{work.round_index}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        draw = np.random.Generator(np.random.PCG64(seed))
        shapes = {key: tensor.shape for key, tensor in self.adapter(work).items()}
        delta = {key: draw.normal(0, 0.1, shapes[key]).astype(np.float32) for key in sorted(shapes)}
        return encode_update(Update(work.work_id, int(draw.integers(1, 50)), delta))

    def put(self, work_id: str, body: bytes, digest: str | None = None) -> httpx.Response:
        digest = content_digest(body) if digest is None else digest
        headers = self.headers | {"Content-Digest": digest}
        return self.http.put(f"/v1/work/{work_id}/update", content=body, headers=headers)

    def report(self, report: Report) -> Receipt:
        path = f"/v1/work/{report.work_id}/report"
        response = self.http.post(path, content=messages.encode(report), headers=self.headers)
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

    def until_finished(self, within_s: float = 20.0) -> int:
        """Work until the coordinator says 410; the number of pieces of work done."""
        done, end = 0, time.monotonic() + within_s
        while (response := self.poll(5.0)).status_code != 410:
            assert time.monotonic() < end
            if response.status_code == 200:
                self.do(messages.decode(response.content, Work))
                done += 1
        over = messages.decode(response.content, Over)
        assert self.poll(have=over.adapter_sha256).status_code == 410
        return done


def enrol(http: httpx.Client, token: str, name: str) -> Device:
    body = messages.encode(Enrol(messages.PROTOCOL, token, name, FACTS))
    response = http.post("/v1/enrol", content=body)
    assert response.status_code == 200, response.text
    return Device(http, messages.decode(response.content, Enrolled))


def wait_for(done: Callable[[], bool], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)
