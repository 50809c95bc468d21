"""What decoders stand on: a folder, a tiny base, a coordinator, a server that says what it is told.

Each part is made when it is first needed, and all go when the ground does.
"""

import shutil
import socket
import threading
from contextlib import ExitStack, closing, suppress
from functools import cached_property
from pathlib import Path

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.coordinator.conftest import serving
from tests.coordinator.devices import Device
from tests.tiny import write_tiny_base

TASK = Task("t", ("mail", "power"), ("[MASK] {text}",), {"mail": "mail", "power": "power"})


class Ground(ExitStack):
    """Where bodies are read.

    Args:
        folder: Empty; gets what is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def file(self, name: str, body: bytes) -> Path:
        """A file of this name with this body."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    @cached_property
    def base(self) -> Base:
        folder = self.folder / "base"
        write_tiny_base(folder)
        return open_base(str(folder))

    @cached_property
    def broken_base(self) -> Path:
        """A base whose files may be overwritten."""
        return Path(shutil.copytree(self.base.folder, self.folder / "broken-base"))

    @cached_property
    def _whole_adapter(self) -> dict[str, bytes]:
        folder, spec = self.folder / "adapter", parse_adapter("lora:1")
        known = Exported("lora:1", "embedded", self.base.base_id, self.base.architecture, TASK)
        state = initial_adapter(spec, self.base, len(TASK.labels), 0)
        write_peft_folder(folder, known, encode_adapter(state))
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def adapter_with(self, name: str, body: bytes) -> Path:
        """The folder of an exported adapter, of whose files one has this body."""
        for each, right in self._whole_adapter.items():
            self.file(f"adapter/{each}", body if each == name else right)
        return self.folder / "adapter"

    @cached_property
    def training(self) -> tuple[Device, Work]:
        """A device of a coordinator that listens, and its open training work."""
        config = RunConfig("x", TASK, base=str(self.base.folder), adapter="lora:1")
        store = self.enter_context(closing(Store(self.folder / "store")))
        live = self.enter_context(serving(store, config))
        devices = live.join("a", "b")
        for device in devices:
            device.do(device.work())  # the evaluation before any training
        return devices[0], devices[0].work()

    def answering(self, body: bytes) -> str:
        """The URL of a server that answers every request with these bytes, and hangs up."""
        self._answers[0] = body
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @cached_property
    def _answers(self) -> list[bytes]:
        return [b""]

    @cached_property
    def _listener(self) -> socket.socket:
        listener = self.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=self._answer, args=(listener,))
        thread.start()
        self.callback(thread.join)
        self.callback(listener.shutdown, socket.SHUT_RDWR)  # goes first: ends `accept`
        return listener

    def _answer(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with near, suppress(OSError):
                near.settimeout(5)
                near.recv(65536)
                near.sendall(self._answers[0])
                near.shutdown(socket.SHUT_WR)
                while near.recv(65536):  # what else was asked, until the device hangs up too
                    pass
