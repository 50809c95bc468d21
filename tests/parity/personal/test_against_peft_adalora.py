"""AdaLoRA against PEFT's: its term beside the loss, and its allocator's scores and masks.

PEFT's model computes in float64 beside the engine's float32. Before each step it gets our numbers,
so that differences do not add up over steps: what is compared is each step's own.
"""

from typing import Any

import numpy as np
import pytest

from smidgen.edge_client.adapters.banks import LAMBDA, SCALING, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.bank import modules_of
from smidgen.edge_client.personal.svd import PruningSchedule, Svd, orthogonality, svd_numbers
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, batch_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.few

RANK, STEPS, WEIGHT = 4, 9, 0.3
PARTS = {LORA_A: "lora_A", LORA_B: "lora_B", LAMBDA: "lora_E"}
SCHEDULES = [
    PruningSchedule(2, warmup=2, final=2, interval=2),
    PruningSchedule(1, warmup=1, final=2),
]


def theirs(base: Base, numbers: AdapterState, schedule: PruningSchedule) -> Any:
    """PEFT's model; alpha is scaled by PEFT's own divisor, r + 1e-5."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(base.folder).double().eval()
    config = peft.AdaLoraConfig(
        init_r=RANK,
        target_r=schedule.target,
        tinit=schedule.warmup,
        tfinal=schedule.final,
        deltaT=schedule.interval,
        total_step=STEPS,
        orth_reg_weight=WEIGHT,
        lora_alpha=SCALING * (RANK + 1e-5),
        target_modules=[module.removeprefix(PREFIX) for module in modules_of(numbers)],
    )
    return peft.get_peft_model(model, config).double()


def theirs_by_name(model: Any, numbers: AdapterState) -> dict[str, Any]:
    """PEFT's parameters under our names."""
    found = dict(model.named_parameters())
    return {
        module + part: found[f"{module}.{own}.default"]
        for module in modules_of(numbers)
        for part, own in PARTS.items()
    }


def put(parameters: dict[str, Any], numbers: AdapterState) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.tensor(numbers[name]).reshape(parameter.shape))


def distance(found: np.ndarray, exact: Any) -> float:
    wide = exact.detach().numpy().reshape(found.shape)
    return float(np.linalg.norm(found - wide) / max(float(np.linalg.norm(wide)), 1e-30))


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_scores_masks_and_the_term_are_pefts(
    tiny_base: Base, hub_task: Task, kind: str, schedule: PruningSchedule
) -> None:
    spec = bank_spec(parse_adapter(f"lora:{RANK}@q,k,v,o,up,down"), tiny_base.shape)
    engine = open_engine(kind, tiny_base, hub_task, spec, Training(tokens=48))
    numbers = svd_numbers(initial_adapter(spec, tiny_base, 6, seed=3), 3)
    model = theirs(tiny_base, numbers, schedule)
    parameters, allocator = theirs_by_name(model, numbers), model.base_model.rankallocator
    own = {id(parameter): name for name, parameter in parameters.items()}
    ours = {
        name: own[id(one)]
        for name, one in model.base_model.model.named_parameters()
        if id(one) in own
    }  # PEFT's name -> ours
    batch, words = batch_of(engine), Tokens(tiny_base.folder).label_word_ids(hub_task)
    ids, seen = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
    optimizer, form, budgets = AdamW(numbers, 0.05, 0.0), Svd(schedule, WEIGHT), []
    for step in range(1, STEPS + 1):
        put(parameters, numbers)
        engine.put(form.adapter(numbers))
        loss, gradients = engine.gradients(batch)
        pulled = form.pull(numbers, gradients, 40)

        asked = {"input_ids": ids, "attention_mask": seen, "labels": ids}
        plain = model.base_model.model(**asked)
        term = model.base_model(**asked).loss - plain.loss  # it is added to the model's own loss
        assert WEIGHT * orthogonality(numbers) == pytest.approx(term.item(), rel=1e-5)
        at_mask = plain.logits[torch.arange(len(ids)), torch.from_numpy(batch.mask_positions)]
        answers = torch.stack([at_mask[:, word].mean(dim=1) for word in words], dim=1)
        entropy = torch.nn.functional.cross_entropy(answers, torch.from_numpy(batch.labels))
        assert loss == pytest.approx(entropy.item(), rel=1e-5)
        model.zero_grad()
        (entropy + term).backward()
        for name, parameter in parameters.items():
            assert distance(pulled[name], parameter.grad) <= 1e-5, (step, name)

        optimizer.step(pulled)
        put(parameters, numbers)
        form.settle(numbers, step, STEPS)
        model.base_model.update_and_allocate(step)
        for name, mine in ours.items():
            if step < STEPS - schedule.final:
                averages, unsure = form.importance.averages, form.importance.unsure
                assert distance(averages[mine], allocator.exp_avg_ipt[name]) <= 1e-5
                assert distance(unsure[mine], allocator.exp_avg_unc[name]) <= 1e-5
        for module in modules_of(numbers):
            sigma = parameters[module + LAMBDA].detach().numpy().ravel()
            assert np.array_equal(numbers[module + LAMBDA] == 0, sigma == 0), (step, module)
        if form.kept:
            pattern = model.peft_config["default"].rank_pattern
            kept = {ours[name]: tuple(np.flatnonzero(rows)) for name, rows in pattern.items()}
            assert kept == {module + LAMBDA: rows for module, rows in form.kept.items()}
            budgets.append(sum(map(len, form.kept.values())))
    assert budgets == sorted(budgets, reverse=True) and len(set(budgets)) > 1
    assert budgets[-1] == schedule.target * len(modules_of(numbers))


@pytest.mark.parametrize("steps", [1, 7, 30])
def test_the_schedule_is_pefts(steps: int) -> None:
    for warmup, final, interval in ((0, 0, 1), (0, 0, 3), (2, 3, 2), (3, 0, 4)):
        if warmup + final >= steps:
            continue
        schedule = PruningSchedule(2, warmup, final, interval)
        allocator = object.__new__(peft.tuners.adalora.RankAllocator)
        allocator.peft_config = peft.AdaLoraConfig(
            tinit=warmup, tfinal=final, deltaT=interval, total_step=steps
        )
        allocator.init_bgt, allocator.target_bgt = 5 * 7, 2 * 7
        for step in range(1, steps + 1):
            budget, masks = allocator.budget_schedule(step)
            assert schedule.budget(step, steps, 5 * 7, 7) == budget
            if step < steps - final:
                assert schedule.masks(step, steps) == masks
