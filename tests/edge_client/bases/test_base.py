import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from smidgen.edge_client.bases.base import EMBEDDED, Base, BaseError, open_base
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder


@pytest.fixture
def folder(tiny_base: Base, tmp_path: Path) -> Path:
    """A copy of the tiny base that may be broken."""
    return Path(shutil.copytree(tiny_base.folder, tmp_path / "base"))


def test_the_embedded_base_has_its_sizes() -> None:
    base = open_base(EMBEDDED)
    assert (base.architecture, base.hidden, base.layers, base.bits) == ("bert", 192, 4, 16)
    assert base.shape.vocabulary == 20000 and base.manifest is None
    with base.open_weights() as weights:
        assert weights.shape("bert.embeddings.word_embeddings.weight") == (20000, 192)


def test_the_real_bases_are_of_16_bits(real_base: Base) -> None:
    assert real_base.bits == 16 and real_base.shape.vocabulary == 30522


def test_a_base_of_float32_has_32_bits(tiny_base: Base) -> None:
    assert tiny_base.bits == 32


def test_the_identity_is_of_the_bytes_not_of_the_place(tiny_base: Base, folder: Path) -> None:
    assert open_base(str(folder)).base_id == tiny_base.base_id
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    assert open_base(str(folder)).base_id != tiny_base.base_id


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(BaseError, match=f"lacks {missing}; a pack made by `smidgen pack`, or"):
        open_base(str(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox' is not known here; expected one of albert, bert"),
        ({"model_type": None}, "is not a Hugging Face configuration"),
        ({"hidden_size": None}, "hidden_size null, which transformers does not take"),
        ({"num_attention_heads": 0}, "sizes that no model has"),
        ({"num_hidden_layers": 10**12}, "sizes that no model has"),
        ({"vocab_size": "many"}, 'vocab_size "many", which transformers does not take'),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"hidden_size": -16}, "sizes that no model has"),
        ({"position_embedding_type": "relative_key"}, "which is not supported here"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(
    folder: Path, change: dict[str, object], said: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BaseError, match=said) as caught:
        open_base(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_configuration_that_is_no_json_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BaseError, match=r"config\.json is n"):
        open_base(str(folder))


def test_truncated_weights_are_told(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(BaseError, match="copy the file again"):
        open_base(str(folder))


def test_nothing_at_a_path_is_told() -> None:
    with pytest.raises(BaseError, match=r"no base at \./nowhere; give a folder, a hub name or"):
        open_base("./nowhere")


@contextmanager
def answering(body: bytes, status: int = 200, said: str = "") -> Iterator[str]:
    """A server that says the same whatever it is asked; its address.

    Args:
        body: Of its answers.
        status: Likewise.
        said: In a header that the hub's library shows.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if said:
                self.send_header("X-Error-Message", said)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """What is said of a base at a hub's address."""
    constants = pytest.importorskip("huggingface_hub.constants")

    def said(endpoint: str) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)  # read from there when it is loaded
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with pytest.raises(BaseError, match=r"^no folder owner/name, and ") as caught:
            open_base("owner/name")
        return str(caught.value)

    return said


@pytest.mark.parametrize(
    "body",
    [b"<html>secret</html>", b'{"sha": 3}', b"[]", b"null", b"[" * 100_000, b"\xff\xfe\xff"],
    ids=lambda body: repr(body[:12]),
)
def test_a_server_that_is_no_hub_is_told_in_one_line(
    hub: Callable[[str], str], body: bytes
) -> None:
    with answering(body) as endpoint:
        told = hub(endpoint)
    assert "gave no answer of a hub" in told and "HF_ENDPOINT" in told
    assert "\n" not in told and "secret" not in told


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_of_a_hub_that_refuses_the_status_is_told_and_no_secret(
    hub: Callable[[str], str], status: int
) -> None:
    with answering(b'{"error": "secret page"}', status, "secret header") as endpoint:
        told = hub(endpoint.replace("//", "//me:secret@"))
    assert f"the hub did not give such a base: it answered {status}; " in told
    assert told.endswith("; look at HF_ENDPOINT, which is set")
    assert "secret" not in told and "127.0.0.1" not in told


class Raising:
    """The hub's library where something else fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_names: object, **_options: object) -> str:
        raise self.error


def test_a_full_disk_or_memory_is_not_the_address_s_fault(
    hub: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("huggingface_hub.snapshot_download", Raising(full))
    told = hub("http://127.0.0.1:1")
    assert told.endswith(", and it cannot be fetched: [Errno 28] No space left on device")
    monkeypatch.setattr("huggingface_hub.snapshot_download", Raising(MemoryError()))
    with pytest.raises(MemoryError):
        open_base("owner/name")


def test_an_address_that_is_not_set_is_not_named(
    hub: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(b"{}", 404) as endpoint:
        assert "HF_ENDPOINT" in hub(endpoint)
        monkeypatch.delenv("HF_ENDPOINT")
        with pytest.raises(BaseError, match=r"it answered 404; give a folder, or another name$"):
            open_base("owner/name")


@pytest.mark.parametrize("endpoint", ["garbage", "ftp://127.0.0.1"])
def test_a_hub_at_what_is_no_address_is_told_in_one_line(
    hub: Callable[[str], str], endpoint: str
) -> None:
    told = hub(endpoint)
    assert told.endswith("; look at HF_ENDPOINT, which is set") and "\n" not in told


def test_a_hub_that_is_not_there_is_told_in_one_line(hub: Callable[[str], str]) -> None:
    with answering(b"") as endpoint:
        pass
    told = hub(endpoint)
    assert "the hub did not give such a base: " in told and "\n" not in told


@pytest.mark.slow
def test_an_address_at_which_the_hubs_library_cannot_be_loaded_is_told_in_one_line() -> None:
    command = (sys.executable, "-m", "smidgen", "client", "base", "owner/name")
    asked = {**os.environ, "HF_ENDPOINT": "http://[::bad"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "gave no answer of a hub (ValueError)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_another_chat_template_is_another_base(tmp_path: Path) -> None:
    folder = write_tiny_decoder(tmp_path / "base", template="")
    ids = {open_base(str(folder)).base_id}
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    ids.add(open_base(str(folder)).base_id)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for template in ("{{ messages }}", [{"name": "default", "template": "x"}]):
        (folder / "tokenizer_config.json").write_text(
            json.dumps(config | {"chat_template": template})
        )
        ids.add(open_base(str(folder)).base_id)
    assert len(ids) == 4
