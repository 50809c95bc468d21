"""An adapter of one's own: by every method, compared, loaded by PEFT, refused in one line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import smidgen
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.personal.methods import FROM_SHARED, METHODS
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.command_line import smidgen as command
from tests.edge_client.engine.engines import KINDS, TEXTS

pytestmark = pytest.mark.few

NAME = "lora:4@q,k,v,o,up,down+generator"
NETS = {"fedp2eft": NAME, "fedl2p": "lora:2@q,k,v,o,up,down+rates"}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for part, labelled in (("labelled", True), ("test", True), ("unlabelled", False)):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"] if labelled else ["text"])
            writer.writerows([t.text, t.label] if labelled else [t.text] for t in TEXTS * 2)
    return folder


def generator(folder: Path, base: Base, task: Task, name: str = NAME, seed: int = 1) -> Path:
    origin = Exported(name, base.peft_name, base.base_id, base.architecture, task)
    state = initial_adapter(parse_adapter(name), base, len(task.labels), seed)
    write_peft_folder(folder, origin, encode_adapter(state))
    return folder


@pytest.mark.few(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_as_many_ranks_and_equal_arguments_give_equal_bytes(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task, method: str, kind: str
) -> None:
    net, by = NETS.get(method), tmp_path / "net"
    if net:
        generator(by, tiny_base, hub_task, net)
    shared = generator(tmp_path / "shared", tiny_base, hub_task, "lora:4")
    found = [
        smidgen.personalize(
            texts,
            tmp_path / out,
            task=hub_task,
            base=str(tiny_base.folder),
            engine=kind,
            generator=by if net else None,
            shared=shared,
            method=method,
            rank_budget=2,
            epochs=2,
        )
        for out in ("one", "two")
    ]
    if method in FROM_SHARED:
        assert not found[0].ranks and found[0].adapter == "lora:4@q,v"
    elif method == "head":
        assert not found[0].ranks and found[0].adapter == "head"
    else:
        assert sum(found[0].ranks.values()) == 2 * len(found[0].ranks) == 2 * 12
    assert (found[0].alpha is not None) == (method == "interpolated")
    aside = 2 if method == "interpolated" else 0  # it chooses how far by these
    assert found[0].num_examples + aside == found[0].test_examples == len(TEXTS) * 2
    assert found[0].accuracy is not None and found[0].accuracy_shared is not None
    one, two = ((tmp_path / n / "adapter_model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two


@pytest.mark.few(1)
@pytest.mark.parametrize("is_above", [False, True])
def test_peft_loads_it_and_gives_the_same_answers(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task, is_above: bool
) -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    by = generator(tmp_path / "generator", tiny_base, hub_task)
    known: dict[str, Any] = {"task": hub_task, "base": str(tiny_base.folder), "engine": "torch"}
    shared = generator(tmp_path / "shared", tiny_base, hub_task, "lora:3@q,up")
    if is_above:
        known |= {"shared": shared, "above": True}
    own = smidgen.personalize(
        texts, tmp_path / "own", generator=by, rank_budget=1, lr=0.05, **known
    )
    assert 0 in own.ranks.values() or len(set(own.ranks.values())) == 1
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_base.folder).eval()
    model = peft.PeftModel.from_pretrained(model, tmp_path / "own").eval()
    labeller = smidgen.predict(
        [t.text for t in TEXTS],
        adapter=tmp_path / "own",
        base=str(tiny_base.folder),
        engine="torch",
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_base.folder / "tokenizer.json"), mask_token="[MASK]"
    )
    words = [tokenizer.convert_tokens_to_ids(hub_task.verbalizer[one]) for one in hub_task.labels]
    for text, said in zip(TEXTS, labeller, strict=True):
        asked = hub_task.patterns[0].replace("{text}", text.text)
        ids = torch.tensor([tokenizer.encode(asked)])
        logits = model(input_ids=ids).logits[0, (ids[0] == tokenizer.mask_token_id).nonzero()[0, 0]]
        expected = logits[words].softmax(0)
        given = [said.probabilities[label] for label in hub_task.labels]
        assert expected.tolist() == pytest.approx(given, abs=1e-4)


def test_what_does_not_fit_is_one_line_and_the_shared_adapter_stays(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task
) -> None:
    by = generator(tmp_path / "generator", tiny_base, hub_task)
    plain = generator(tmp_path / "plain", tiny_base, hub_task, "lora:4")
    other = generator(tmp_path / "other", tiny_base, hub_task, "lora:8@q,v+generator")
    soft = generator(tmp_path / "soft", tiny_base, hub_task, "prompt:4")
    high = generator(tmp_path / "high", tiny_base, hub_task, "lora:10")
    rates = generator(tmp_path / "rates", tiny_base, hub_task, NETS["fedl2p"])
    single = tmp_path / "single"
    single.mkdir()
    (single / "labelled.csv").write_text("text,label\nstorm,weather\n")
    known: dict[str, Any] = {"task": hub_task, "base": str(tiny_base.folder), "engine": KINDS[0]}
    for data, options, said in (
        (texts, {"generator": by, "rank_budget": 0}, "--rank-budget 0: 1 to 4, the bank's ranks"),
        (texts, {"generator": by, "rank_budget": 5}, "--rank-budget 5: 1 to 4, the bank's ranks"),
        (texts, {"generator": plain}, "is an adapter, lora:4"),
        (texts, {"generator": by, "shared": other}, "is a net for adapters, which answers no text"),
        (texts, {"method": "fedp2eft"}, "--method fedp2eft: it goes by what a .generator run gave"),
        (texts, {"method": "fedl2p"}, "--method fedl2p: it goes by what a .rates run gave"),
        (texts, {"generator": by, "method": "lora"}, "is for --method fedp2eft; leave --method"),
        (texts, {"generator": by, "method": "fedl2p"}, "is for --method fedp2eft; leave --method"),
        (texts, {"method": "tuned"}, "--method tuned goes on from --shared FOLDER; give it"),
        (texts, {"above": True}, "--above goes above --shared FOLDER; give it"),
        (texts, {"above": True, "shared": plain, "method": "tuned"}, "--above: method tuned"),
        (texts, {"above": True, "shared": soft}, "LoRA alone is expected below one's own"),
        (
            texts,
            {"above": True, "shared": soft, "rank_budget": 2},
            "LoRA alone is expected below one's own",
        ),
        (
            texts,
            {"above": True, "shared": high, "rank_budget": 2},
            "--above: the shared adapter lora:10@q,v leaves no room for 16 ranks more",
        ),
        (texts, {"generator": rates, "rank_budget": 4}, "the rates are of rank 2; leave it out"),
        (texts, {"method": "adalora", "epochs": 1, "batch": 64}, "one step weighs no rank"),
        (texts, {"method": "lara"}, "--method lara: one of fedp2eft, fedl2p"),
        (single, {"generator": by}, "1 text here: a generator goes by 2 or more"),
    ):
        with pytest.raises((WrongInput, Failed), match=said) as raised:
            smidgen.personalize(data, tmp_path / "own", **known, **options)
        assert "\n" not in str(raised.value) and not (tmp_path / "own").exists()


@pytest.mark.parametrize("option", ["shared", "generator"])
def test_what_is_given_is_not_written_over(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task, option: str
) -> None:
    name = NAME if option == "generator" else "lora:4"
    given = generator(tmp_path / "given", tiny_base, hub_task, name)
    before = {path.name: path.read_bytes() for path in given.iterdir()}
    known: dict[str, Any] = {"task": hub_task, "base": str(tiny_base.folder), option: given}
    with pytest.raises(WrongInput, match=f"is the --{option} folder; give another"):
        smidgen.personalize(texts, tmp_path / "other" / ".." / "given", **known)
    assert {path.name: path.read_bytes() for path in given.iterdir()} == before


def test_learned_rates_are_for_the_rank_that_they_were_learned_with(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task
) -> None:
    rates = generator(tmp_path / "rates", tiny_base, hub_task, NETS["fedl2p"])
    known: dict[str, Any] = {"task": hub_task, "base": str(tiny_base.folder), "epochs": 1}
    found = smidgen.personalize(texts, tmp_path / "own", generator=rates, **known)
    assert set(found.ranks.values()) == {2}
    with pytest.raises(AdapterError, match="rank 20; its matrix has 16 at most"):  # not: a bank
        smidgen.personalize(texts, tmp_path / "high", method="lora", rank_budget=20, **known)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["bt-lora", "uniform", "adalora"])
def test_no_rank_is_chosen_and_none_trained_by_a_plan_that_leaves_layers_out(
    tmp_path: Path,
    texts: Path,
    tiny_base: Base,
    hub_task: Task,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    plans = list[Plan]()
    gradients = Engine.gradients

    def seen(self: Engine, batch: Batch) -> Any:
        plans.append(self.plan)
        assert self.budget is not None
        assert {option.plan.depth for option in self.budget._found} == {self.layers}
        return gradients(self, batch)

    monkeypatch.setattr(Engine, "gradients", seen)
    known: dict[str, Any] = {"task": hub_task, "base": str(tiny_base.folder), "epochs": 2}
    smidgen.personalize(texts, tmp_path / "own", method=method, rank_budget=2, **known)
    assert plans


def test_the_command_shows_who_got_which_rank(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task
) -> None:
    by = generator(tmp_path / "generator", tiny_base, hub_task)
    shared = generator(tmp_path / "shared", tiny_base, hub_task, "lora:4")
    (texts / "task.toml").write_text(
        f"labels = {json.dumps(list(hub_task.labels))}\n"
        f"patterns = {json.dumps(list(hub_task.patterns))}\n"
    )
    begin = ("client", "personalize", "--data", str(texts), "--base", str(tiny_base.folder))
    line = (*begin, "--generator", str(by), "--shared", str(shared), "--epochs", "1")
    done = command(*line, "--out", str(tmp_path / "own"))
    assert done.exit_code == 0, done.stderr
    assert "24 in " in done.stdout and "of 12 modules, by fedp2eft" in done.stdout
    assert "the shared adapter" in done.stdout
    told = command(*line, "--out", str(tmp_path / "own"), "--json")
    assert json.loads(told.stdout)["ranks"]["0.q"] >= 0


def test_the_task_is_the_shared_adapter_s_where_nobody_says_another(
    tmp_path: Path, texts: Path, tiny_base: Base, hub_task: Task
) -> None:
    shared = generator(tmp_path / "shared", tiny_base, hub_task, "lora:4")
    asked: dict[str, Any] = {"base": str(tiny_base.folder), "epochs": 1, "method": "uniform"}
    with pytest.raises(WrongInput, match="no task file at"):
        smidgen.personalize(texts, tmp_path / "none", **asked)
    own = smidgen.personalize(texts, tmp_path / "own", shared=shared, **asked)
    named = smidgen.personalize(texts, tmp_path / "named", shared=shared, task=hub_task, **asked)
    assert (own.score, own.loss) == (named.score, named.loss)
