"""Every decoder of bytes from outside, by name: each ends in a value or in one of its own errors.

A target takes a body and, where it needs one, the ground it stands on: a folder, a base, sockets.
Where a value can be written again, the law is that it reads back as the same.
"""

import io
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from smidgen.coordinator.config import read_run_config
from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.events import decode_event, encode_event
from smidgen.edge_client.adapters.peft_folder import CONFIG, ORIGIN, WEIGHTS, read_peft_folder
from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.gguf.tokenizer import gguf_tokenizer
from smidgen.edge_client.bases.header import read_header
from smidgen.edge_client.bases.manifest import canonical, read_manifest
from smidgen.edge_client.client.connection import LONGEST_ASKED_S, asked_pause_s
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.client.transport import Coordinator
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.formats.arrow import STATE
from smidgen.edge_client.formats.lines import BOUNDS
from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.formats.source import PLAIN, Source
from smidgen.edge_client.log_lines import shown
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.tasks.task import read_task, task_toml
from smidgen.edge_client.texts.examples import Found, every_row, read_file, read_folder, streamed
from smidgen.edge_client.texts.parts import ANY, Labels
from smidgen.edge_client.texts.written import write_tagged
from smidgen.edge_client.wire import fleet, messages
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.pins import pin_of, read_pin
from smidgen.edge_client.wire.tensors import (
    add_step,
    decode_adapter,
    decode_update,
    digest_in,
    encode_adapter,
    encode_update,
    sha256,
)
from tests.fuzz.ground import TASK, Ground

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
LONGEST_CPU_S = 10.0  # of one body of at most some kilobytes
OUR_ERRORS = (WrongInput, Failed)


@dataclass(frozen=True)
class Target:
    """A decoder.

    Attributes:
        read: Reads a body.
        ends: The errors that it may end in.
    """

    read: Callable[[Ground, bytes], object]
    ends: tuple[type[Exception], ...] = OUR_ERRORS

    def is_value(self, ground: Ground, body: bytes) -> bool:
        """Read a body; whether it ended in a value.

        Raises:
            AssertionError: It took too long, or a law does not hold.
            Exception: Any that is not one of its own.
        """
        began_s = time.process_time()
        try:
            self.read(ground, body)
        except self.ends as error:
            said = shown(str(error))
        else:
            said = ""
        spent_s = time.process_time() - began_s
        assert spent_s < LONGEST_CPU_S, f"{spent_s:.1f} s of processor time for {len(body)} bytes"
        return not said


def message(kind: type[Any]) -> Target:
    """A JSON message of the wire, which also reads back as it is sent."""

    def read(_: Ground, body: bytes) -> None:
        found = messages.decode(body, kind)
        assert messages.decode(messages.encode(found), kind) == found
        assert messages.decode(messages.encode_brief(found), kind) == found

    return Target(read)


def adapter(_: Ground, body: bytes) -> None:
    found = encode_adapter(decode_adapter(body))
    assert encode_adapter(decode_adapter(found)) == found


def update(_: Ground, body: bytes) -> None:
    found = encode_update(decode_update(body))
    assert encode_update(decode_update(found)) == found


def coded_update(_: Ground, body: bytes) -> None:
    """A body in whatever codec, beside the adapter that it answers, as a coordinator takes it.

    What comes of it has that adapter's tensors, finite, and reads back as the same.
    """
    found = check_update(body, "w", ADAPTER)
    assert all(part.dtype == np.float32 for part in found.delta.values())
    assert all(np.isfinite(part).all() for part in found.delta.values())
    again = encode_update(found)
    assert encode_update(check_update(again, "w", ADAPTER)) == again


def step(_: Ground, body: bytes) -> None:
    found = add_step(START, body)
    with suppress(WireError):  # what runs out of float32's range has another SHA-256 than is told
        assert encode_adapter(decode_adapter(found)) == found


def event(_: Ground, body: bytes) -> None:
    found = decode_event(body.decode())
    assert decode_event(encode_event(found)) == found


def safetensors_header(ground: Ground, body: bytes) -> None:
    path = ground.file("weights.safetensors", body)
    with path.open("rb") as file:
        entries = read_header(file, path)
    assert all(8 <= entry.start <= entry.end <= len(body) for entry in entries.values())


def gguf(ground: Ground, body: bytes) -> None:
    """A whole base of one file: its header, its tensors' rows, its tokenizer."""
    base = open_base(str(ground.file("base.gguf", body)))
    with base.open_weights() as weights:
        for name in weights.names:
            shape = weights.shape(name)
            found = weights.vector(name) if len(shape) == 1 else weights.rows(name, range(shape[0]))
            assert found.shape == shape
    gguf_tokenizer(base.folder)


def manifest(ground: Ground, body: bytes) -> None:
    found = read_manifest(ground.file("manifest.json", body))
    assert read_manifest(ground.file("manifest.json", canonical(asdict(found)))) == found


def base_config(ground: Ground, body: bytes) -> None:
    (ground.broken_base / "config.json").write_bytes(body)
    open_base(str(ground.broken_base))


def peft_origin(ground: Ground, body: bytes) -> None:
    read_peft_folder(ground.adapter_with(ORIGIN, body), ground.base)


def peft_config(ground: Ground, body: bytes) -> None:
    read_peft_adapter(ground.adapter_with(CONFIG, body), ground.base, TASK)


def peft_weights(ground: Ground, body: bytes) -> None:
    folder = ground.adapter_with(WEIGHTS, body)
    read_peft_folder(folder, ground.base)
    read_peft_adapter(folder, ground.base, TASK)


def adapter_name(_: Ground, body: bytes) -> None:
    parse_adapter(body.decode(errors="replace"))


def check_accounts(every: Iterable[Found]) -> None:
    """The law of rows: each has a text or a reason, in ascending lines, and its text is one."""
    last = ("", 0)
    for one in every:
        assert one.file != last[0] or one.line > last[1], (one.line, last)
        last = (one.file, one.line)
        if one.example is None:
            assert one.fault or one.reason == "empty"
            one.fault.encode()
        else:
            assert one.example.text.strip() and not one.fault
            one.example.text.encode()
            assert len(one.example.tags) in (0, len(one.example.words))


def accounted(name: str, folder: str = "read") -> Target:
    """A file with such a name, read for labels, for tags and for texts alone."""

    def read(ground: Ground, body: bytes) -> None:
        path, faults = ground.file(f"{folder}/{name}", body), list[Exception]()
        path = path.parent if name == STATE else path
        for wanted, labelled in WAYS:
            try:
                check_accounts(every_row(path, wanted, labelled, [], PLAIN, BOUNDS))
            except OUR_ERRORS as error:
                faults.append(error)
        if len(faults) == len(WAYS):
            raise faults[0]

    return Target(read)


def saved_dataset(ground: Ground, body: bytes) -> None:
    """What a folder of `datasets` says of its files."""
    ground.file("saved/data-00000-of-00001.arrow", corpus("arrow")["right-stream"])
    accounted(STATE, "saved").read(ground, body)


def stream(_: Ground, body: bytes) -> None:
    """What comes on stdin."""
    file = io.BufferedReader(io.BytesIO(body))
    check_accounts(streamed(Source(Path("stdin"), bounds=BOUNDS, stream=file)))


def rows(name: str) -> Target:
    """A file of texts with such a name: of a device's own, and of others."""

    def read(ground: Ground, body: bytes) -> None:
        path = ground.file(name, body)
        with suppress(*OUR_ERRORS):
            check_accounts(every_row(path, Labels(TASK.labels), True, [], PLAIN, BOUNDS))
        for example in read_file(path, ANY, labelled=True):
            example.text.encode()
        for _, row in read_rows(path):
            "".join([*row.keys(), *row.values()]).encode()

    return Target(read)


def tagged(name: str) -> Target:
    """A file of tagged words with such a name; what is read of it reads back as the same."""

    def read(ground: Ground, body: bytes) -> None:
        path = ground.file(name, body)
        with suppress(*OUR_ERRORS):
            check_accounts(every_row(path, DRUGS, True, [], PLAIN, BOUNDS))
        found = read_file(path, DRUGS, labelled=True)
        again = ground.folder / "again" / "labelled.jsonl"
        again.parent.mkdir(exist_ok=True)
        write_tagged(again, found)
        assert read_file(again, DRUGS, labelled=True) == found
        assert all(set(one.tags) <= TAGS for one in found)

    return Target(read)


def paragraphs(ground: Ground, body: bytes) -> None:
    """Two files of a folder, a line of dashes between them."""
    for name, part in zip("ab", [*body.split(b"\n---\n", 1), b""], strict=False):
        ground.file(f"notes/unlabelled/{name}.txt", part)
    for example in read_folder(
        ground.folder / "notes", Labels(files=kind_named("mlm").files)
    ).labelled:
        assert example.text.strip() and "\n" not in example.text
        example.text.encode()


def lines(ground: Ground, body: bytes) -> None:
    for example in read_file(
        ground.file("notes.txt", body), Labels(files=kind_named("mlm").files), labelled=False
    ):
        example.text.encode()


def task(ground: Ground, body: bytes) -> None:
    found = read_task(ground.file("task.toml", body))
    assert read_task(ground.file("task.toml", task_toml(found).encode())) == found


def run_file(ground: Ground, body: bytes) -> None:
    read_run_config(ground.file("run.toml", body), {})


def identity(ground: Ground, body: bytes) -> None:
    state = ClientState(ground.folder / "state")
    ground.file("state/device.json", body)
    assert state.identity() == state.identity()


def outbox(ground: Ground, body: bytes) -> None:
    state = ClientState(ground.folder / "state")
    ground.file("state/outbox/work.json", body + b"\n" + sha256(body).encode())
    for answer in state.finished():
        messages.encode_brief(answer.report)


def headers(_: Ground, body: bytes) -> None:
    """Retry-After, Date and Repr-Digest, a line each."""
    after, date, digest = [*body.decode("latin-1").split("\n", 2), "", ""][:3]
    told = httpx.Headers([(b"Retry-After", after.encode()), (b"Date", date.encode())])
    assert 0.0 <= asked_pause_s(told, NOW) <= LONGEST_ASKED_S
    found = digest_in(digest)
    assert found is None or len(bytes.fromhex(found)) == 32


def pin(_: Ground, body: bytes) -> None:
    """The certificate of a CA, and its name as people paste it."""
    read_pin(body.decode("latin-1"))
    assert read_pin(pin_of(body)) == pin_of(body)


def answered(ask: Callable[[Coordinator], object]) -> Target:
    """All that comes back on a connection, from the status line on, to what a device asks."""

    def read(ground: Ground, body: bytes) -> None:
        coordinator = Coordinator(ground.answering(body), "key", timeout_s=5)
        try:
            ask(coordinator)
        finally:
            coordinator.close()

    return Target(read)


def upload(ground: Ground, body: bytes) -> None:
    """Content-Range and Repr-Digest, a line each, and what is uploaded."""
    where, digest, content = [*body.split(b"\n", 2), b"", b""][:3]
    device, work = ground.training
    told = {b"Authorization": f"Bearer {device.key}".encode(), b"Repr-Digest": digest}
    if where:
        told[b"Content-Range"] = where
    path = f"/v1/work/{work.work_id}/update"
    try:
        response = device.http.put(path, content=content, headers=list(told.items()))
    except httpx.LocalProtocolError:
        return  # such a header cannot be sent
    assert response.status_code < 500, (response.status_code, response.text)


def request(ground: Ground, body: bytes) -> None:
    """All that comes in on a connection to the coordinator, from the request line on."""
    device, _ = ground.training
    there = (device.http.base_url.host, device.http.base_url.port)
    with socket.create_connection(there, timeout=30) as near:
        near.sendall(body.replace(b"KEY", device.key.encode()))
        near.shutdown(socket.SHUT_WR)
        said = near.recv(65536)
    assert not said or said.startswith(b"HTTP/1.1 "), said[:100]
    assert not said.startswith(b"HTTP/1.1 5"), said[:500]
    assert device.http.get("/healthz").status_code == 200


DIGEST = sha256(b"an adapter")
ADAPTER = {"a": np.ones((2, 3), np.float32), "b": np.ones(131, np.float32)}  # coded ones answer it
START = encode_adapter({"x": np.linspace(-1.0, 1.0, 9, dtype=np.float32)})
DRUGS = Labels(("Drug", "Illness"), kind_named("tagging").files)
WAYS = ((Labels(TASK.labels), True), (DRUGS, True), (ANY, False))
TAGS = {"O", *(f"{place}-{label}" for label in DRUGS.labels for place in "BI")}
TARGETS = {
    "enrol": message(fleet.Enrol),
    "enrolled": message(fleet.Enrolled),
    "terms": message(fleet.Terms),
    "membership": message(fleet.Membership),
    "next": message(messages.Next),
    "report": message(messages.Report),
    "receipt": message(messages.Receipt),
    "adapter": Target(adapter),
    "update": Target(update),
    "coded-update": Target(coded_update, (Refusal,)),
    "step": Target(step),
    "event": Target(event, (ValueError,)),
    "header": Target(safetensors_header),
    "gguf": Target(gguf),
    "manifest": Target(manifest),
    "base-config": Target(base_config),
    "peft-origin": Target(peft_origin),
    "peft-config": Target(peft_config),
    "peft-weights": Target(peft_weights),
    "adapter-name": Target(adapter_name),
    "csv": rows("labelled.csv"),
    "tsv": rows("labelled.tsv"),
    "jsonl": rows("labelled.jsonl"),
    "gz": rows("labelled.csv.gz"),
    "json": accounted("export.json"),
    "objects": accounted("export.jsonl"),
    "arrow": accounted("labelled.arrow"),
    "saved-dataset": Target(saved_dataset),
    "conllu": accounted("words.conllu"),
    "stream": Target(stream),
    "parquet": rows("labelled.parquet"),
    "tagged-columns": tagged("words.conll"),
    "tagged-tsv": tagged("words.tsv"),
    "tagged-json": tagged("words.jsonl"),
    "tagged-gz": tagged("words.iob.gz"),
    "paragraphs": Target(paragraphs),
    "lines": Target(lines),
    "task": Target(task),
    "run-file": Target(run_file),
    "identity": Target(identity),
    "outbox": Target(outbox),
    "headers": Target(headers),
    "pin": Target(pin, (ValueError,)),
    "answer-to-poll": answered(lambda asked: asked.next_work(0, WorkMeter())),
    "answer-to-fetch": answered(lambda asked: asked.adapter(DIGEST, WorkMeter(), 10)),
    "answer-to-upload": answered(lambda asked: asked.upload("work", b"update", WorkMeter())),
    "upload": Target(upload),
    "request": Target(request),
}


def corpus(name: str) -> dict[str, bytes]:
    """A target's kept bodies by their files' names; those called `right...` end in a value."""
    folder = Path(__file__).with_name("corpus") / name
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
