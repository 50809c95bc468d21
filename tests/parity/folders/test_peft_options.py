"""Each option of PEFT's configurations gives PEFT's own logits here, or is refused by its name."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from smidgen.edge_client.adapters.peft_import import read_peft_adapter
from smidgen.edge_client.adapters.peft_options import READ, REFUSED, UNUSED
from smidgen.edge_client.adapters.spec import AdapterError
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Training
from tests.parity.folders.kinds import DRUGS, TAGGED, rows_of
from tests.parity.folders.peft_cases import LABELS, LORA, MASKED, PROMPTS, TAGS, Case
from tests.parity.test_against_transformers import TEXTS, full_model_rows
from tests.tiny import HIDDEN

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

CONFIGS = {"LORA": peft.LoraConfig, "PROMPT_TUNING": peft.PromptTuningConfig}
CASES = [("LORA", case) for case in LORA] + [("PROMPT_TUNING", case) for case in PROMPTS]
FIRST = {(kind, case.option): case for kind, case in reversed(CASES)}.values()
ASKED = [  # an option's first case is fast, the others are slow
    pytest.param(*one, id=f"{one[0]}-{one[1]}", marks=() if one[1] in FIRST else pytest.mark.slow)
    for one in CASES
]
RTOL, ATOL = 1e-4, 1e-5  # float32 sums in another order
pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's about options that it ignores


def with_pooler(base: Base, folder: Path) -> Base:
    """The same base with a pooler in its checkpoint, as `AutoModelForPreTraining` saves it."""
    for path in base.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors, draw = load_file(base.weights), np.random.default_rng(5)
    tensors["bert.pooler.dense.weight"] = draw.normal(0, 0.3, (HIDDEN, HIDDEN)).astype(np.float32)
    tensors["bert.pooler.dense.bias"] = draw.normal(0, 0.3, HIDDEN).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return open_base(str(folder))


def plain_model(base: Base, head: str, task: Task) -> Any:
    more = {} if head == MASKED else {"num_labels": kind_of(task).head(task).rows}
    auto = getattr(transformers, f"AutoModelFor{head}")
    torch.manual_seed(7)
    return auto.from_pretrained(base.folder, dtype=torch.float32, **more)


def saved(kind: str, case: Case, plain: Any, folder: Path) -> None:
    """An adapter with random values as PEFT saves it."""
    model = peft.get_peft_model(plain, CONFIGS[kind](**case.made))
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # some ways to begin leave one of the two as zeros, and it frozen
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (case.changed or {})))


def task_of(case: Case, task: Task) -> Task:
    return DRUGS if case.head == TAGS else task


def rows_in_peft(model: Any, case: Case, base: Base, task: Task, engine: Any) -> list[np.ndarray]:
    soft = engine.encoder.soft
    if case.head == MASKED:
        return list(full_model_rows(model, base, task, soft))
    texts = TAGGED if case.head == TAGS else TEXTS
    prompts = engine.encoder.prompts(texts)
    if case.head == LABELS:
        ids = [torch.tensor([prompt.ids]) for prompt in prompts]
        with torch.no_grad():
            logits = [model(input_ids=one).logits[0] for one in ids]
        return [torch.log_softmax(one, -1).numpy() for one in logits]
    return [rows_of(model, one.ids, [place + soft for place in one.places]) for one in prompts]


@pytest.mark.few(30)
@pytest.mark.parametrize(("kind", "case"), ASKED)
def test_an_option_gives_pefts_logits_or_is_refused_by_name(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, case: Case
) -> None:
    folder, place = tmp_path / "adapter", tmp_path / "base"
    place.mkdir()
    base = with_pooler(tiny_base, place) if case.has_pooler else tiny_base
    task = task_of(case, hub_task)
    saved(kind, case, plain_model(base, case.head, task), folder)
    if case.said:
        with pytest.raises(AdapterError, match=case.said) as caught:
            read_peft_adapter(folder, base, task)
        assert len(str(caught.value).splitlines()) == 1
        return
    spec, state = read_peft_adapter(folder, base, task)
    engine = open_engine("torch", base, task, spec, Training())
    engine.load_adapter(state)
    again = peft.PeftModel.from_pretrained(plain_model(base, case.head, task), folder).eval()
    theirs = rows_in_peft(again, case, base, task, engine)
    ours = engine.tag(TAGGED) if case.head == TAGS else engine.predict(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, RTOL, ATOL)
    engine.load_adapter({name: np.zeros_like(tensor) for name, tensor in state.items()})
    without = engine.tag(TAGGED) if case.head == TAGS else engine.predict(TEXTS)
    assert np.abs(np.concatenate(without) - np.concatenate(theirs)).max() > 100 * ATOL


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_option_of_the_installed_peft_is_in_the_tables(kind: str) -> None:
    tables = [*READ[kind], *UNUSED[kind], *REFUSED[kind]]
    assert len(set(tables)) == len(tables)
    assert set(tables) == {field.name for field in fields(CONFIGS[kind])}


@pytest.mark.parametrize(("kind", "cases"), [("LORA", LORA), ("PROMPT_TUNING", PROMPTS)])
def test_every_option_has_a_case(kind: str, cases: list[Case]) -> None:
    same = {case.option for case in cases if not case.said}
    refused = {case.option for case in cases if case.said}
    assert {*READ[kind], *UNUSED[kind]} - {"peft_type"} <= same
    assert set(REFUSED[kind]) <= refused - same


@pytest.mark.parametrize("kind", [str(one.value) for one in peft.PeftType])
def test_every_other_type_is_refused_by_its_name(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    if kind in CONFIGS:
        return
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
    with pytest.raises(AdapterError, match=f"PEFT type {kind} is not supported"):
        read_peft_adapter(tmp_path, tiny_base, hub_task)
