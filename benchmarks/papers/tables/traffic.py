"""Parameters and traffic of Multilingual Federated Prompt Tuning, recounted from its settings.

The paper (arXiv:2507.03003, ICLR'24) trains XLM-R base. Its 1,202,708 and 1,491,476 parameters are
those of a soft prompt of 8 tokens (appendix C says 1 token, section 5.4 a 2 x 768 encoder) and of
LoRA r = 8 on query and value, each with a classification head of 10 labels that is counted twice:
its original, and the copy that PEFT trains and sends. Today's PEFT freezes the original and prints
604,426 and 893,194 for the same models; ShiZhengyan/DePT issue 13 shows both counts for another
model. The 278,655,764 that the paper prints for full fine-tuning are the prompt's model in all,
prompt and second head included; without them it is 278,051,338.
The paper's megabytes are about these counts' share of 110,592 MB (1.08 x 1024 MB, 5 clients, 10
rounds, two ways): 479.4 and 594.5; the paper has 479, in its text 478.93, and 594.

Everything here follows from sizes alone; no weights are needed. The bytes smidgen sends are
measured: the length of the files that its encoder makes of tensors of these shapes.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.papers.grid import read_file
from smidgen.edge_client.adapters.spec import (
    PREFIX,
    AdapterSpec,
    lora_modules,
    parse_adapter,
)
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.bases.layout import checked_shape, tensors_of
from smidgen.edge_client.bases.random_models import hub_config
from smidgen.edge_client.tables import Column, Table
from smidgen.edge_client.wire.tensors import Update, encode_adapter, encode_update
from smidgen.simulation.report.scenario import Figure

PARAMETERS, COMMUNICATION = "# Trainable Params", "Communication Cost"
FULL, PROMPT, LORA = "Full fine-tuning", "Prompt Tuning (Ours)", "LoRA (Ours)"
BASE = "xlm-roberta-base"
LABELS = 10
CLIENTS, ROUNDS = 5, 10
FLOAT_BYTES = 4
WORK_ID = "0" * 32
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class TrafficRow:
    """One way to tune the base, and what it sends.

    Attributes:
        what: The way, as people call it.
        parameters: Numbers that are trained, or that the paper says are.
        share: Their share of the base without its heads.
        bytes_down: What one client receives in a round.
        bytes_up: What one client sends in a round.
        is_measured: Whether the bytes are lengths of encoded files, not parameters x 4.
        printed: The row of the paper's table that it recounts; empty for none.
        note: Where the count comes from.
    """

    what: str
    parameters: int
    share: float
    bytes_down: int
    bytes_up: int
    is_measured: bool
    printed: str
    note: str

    @property
    def run_bytes(self) -> int:
        """Bytes of 5 clients in 10 rounds, both ways."""
        return CLIENTS * ROUNDS * (self.bytes_down + self.bytes_up)

    @property
    def published(self) -> Mapping[str, Figure]:
        """What the paper prints for it, by column."""
        return read_file("mfpt")[1].tables["traffic"].known.get(self.printed, {})


def traffic_table() -> tuple[Table, list[dict[str, Any]]]:
    """Parameters and traffic as the paper counts them, recounted, and as smidgen sends them."""
    rows, printed = traffic_rows(), read_file("mfpt")[1].tables["traffic"]
    heads = ("trained", "[paper]", "MB", "[paper] MB")
    lines = [
        [
            row.what,
            f"{row.parameters:,}",
            str(row.published.get(PARAMETERS, "")),
            f"{row.run_bytes / 1e6:,.1f}",
            str(row.published.get(COMMUNICATION, "")),
            "files" if row.is_measured else "count",
        ]
        for row in rows
    ]
    notes = [
        "trained: parameters; MB: ours of 1,000,000 bytes, the paper's are not said (its 108 GB "
        "are its 110,592 MB); from: files that smidgen wrote, or a count of parameters",
        *dict.fromkeys(f"{row.what}: {row.note}" for row in rows if row.printed),
        f"[paper] {printed.source}",
    ]
    columns = [Column("what is sent", "word"), *map(Column, heads), Column("from", "word")]
    title = "XLM-R base, 10 labels; 5 clients x 10 rounds; ours: both ways"
    return Table(columns, lines, title, notes), [
        asdict(row)
        | {
            "run_bytes": row.run_bytes,
            "published": [figure.to_json() for figure in row.published.values()],
        }
        for row in rows
    ]


def traffic_rows() -> list[TrafficRow]:
    """The paper's rows as printed and recounted, then what smidgen sends for the same base."""
    config = hub_config(BASE)
    base, head = base_parameters(config), head_parameters(config, LABELS)
    prompt, lora = (_count(shapes_of(parse_adapter(a), config, 0)) for a in ("prompt:8", "lora:8"))

    def counted(what: str, parameters: int, printed: str, note: str) -> TrafficRow:
        size, share = FLOAT_BYTES * parameters, parameters / base
        return TrafficRow(what, parameters, share, size, size, False, printed, note)

    whole = "base and head; the paper's is the prompt's model, prompt and second head included"
    twice = "head counted twice: its original and the copy that is trained"
    once = "head counted once, as PEFT prints it today"
    rows = [
        counted("full fine-tuning", base + head, FULL, whole),
        counted("prompt, paper's count", prompt + 2 * head, PROMPT, twice),
        counted("prompt, recounted", prompt + head, "", once),
        counted("LoRA, paper's count", lora + 2 * head, LORA, twice),
        counted("LoRA, recounted", lora + head, "", once),
    ]
    adapters = ("prompt:8+head", "lora:8+head", "prompt:8", "lora:8", "lora:1")
    return rows + [sent(name, config, base) for name in adapters]


def sent(name: str, config: Mapping[str, Any], base: int) -> TrafficRow:
    """What smidgen sends for an adapter: an adapter's file down, an update's file up."""
    spec = parse_adapter(name)
    state = {
        tensor: np.zeros(shape, np.float32)
        for tensor, shape in shapes_of(spec, config, LABELS).items()
    }
    parameters = sum(tensor.size for tensor in state.values())
    down, up = len(encode_adapter(state)), len(encode_update(Update(WORK_ID, 1000, state)))
    note = "head of 10 labels" if spec.head else "asked by cloze, so no head"
    return TrafficRow(f"smidgen {name}", parameters, parameters / base, down, up, True, "", note)


def shapes_of(spec: AdapterSpec, config: Mapping[str, Any], num_labels: int) -> Shapes:
    """Names and shapes of an adapter's tensors, from a model's configuration alone.

    Equal to those of `adapters.initial.initial_adapter` for a base of this configuration.

    Args:
        spec: LoRA, a prompt, a head, or one of the first two with a head.
        config: Hugging Face's configuration.
        num_labels: Rows of the head.
    """
    shape = checked_shape(config)
    shapes: Shapes = {}
    if spec.rank:
        modules = lora_modules(spec, shape)
        named = "|".join(map(re.escape, modules))
        for name, (rows, columns) in _matching(config, re.compile(rf"({named})\.weight")):
            module, rank = PREFIX + name.removesuffix(".weight"), modules[name[:-7]].rank
            shapes[f"{module}.lora_A.weight"] = (rank, columns)
            shapes[f"{module}.lora_B.weight"] = (rows, rank)
    if spec.prompt_tokens:
        shapes["prompt_embeddings"] = (spec.prompt_tokens, shape.embedding)
    if spec.head:
        sizes = {"hidden": shape.hidden, "labels": num_labels}
        for name, (rows_of, columns_of) in family_of(shape.architecture).classifier.items():
            shapes[f"{PREFIX}{name}.weight"] = (sizes[rows_of], sizes[columns_of])
            shapes[f"{PREFIX}{name}.bias"] = (sizes[rows_of],)
    return shapes


def base_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a model without pooler and heads."""
    *parts, _ = tensors_of(config)
    return sum(math.prod(tensor.shape) for part in parts for tensor in part)


def head_parameters(config: Mapping[str, Any], num_labels: int) -> int:
    return _count(shapes_of(AdapterSpec(head=True), config, num_labels))


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _matching(
    config: Mapping[str, Any], pattern: re.Pattern[str]
) -> Iterable[tuple[str, tuple[int, ...]]]:
    for part in tensors_of(config):
        for tensor in part:
            if pattern.fullmatch(tensor.name):
                yield tensor.name, tensor.shape
