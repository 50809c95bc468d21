"""The model card and the names in an exported folder: what people read where the device is not."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.card import (
    Card,
    is_hub_name,
    licence_of,
    loadable_name,
    model_card,
    portable_name,
)
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, read_peft_folder, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.outputs import OutputError
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from tests.tiny import write_tiny_base

DRUGS = Task("drugs", ("Chemical", "Disease"), kind="tagging")
NOTES = Task("notes", kind="mlm", masking=Masking(0.2, whole_words=True))
CARD = Card(3, 8, {0: 0.4, 3: 0.8125}, "2026-01-31", "0.1.0", "apache-2.0")
ADAPTERS = ("lora:2", "lora:2@q,up/top1", "bias", "prompt:3", "head", "lora:2+head")


def export(folder: Path, base: Base, task: Task, name: str, base_name: str) -> Exported:
    origin = Exported(name, base_name, base.base_id, base.architecture, task)
    write_peft_folder(folder, origin, encode_adapter(drawn(base, task, name)), CARD)
    return origin


def drawn(base: Base, task: Task, name: str) -> AdapterState:
    known = (parse_adapter(name), base, kind_of(task).head(task).rows, 3)
    return initial_adapter(*known, is_of_words=task.kind == "tagging")


@pytest.mark.parametrize("base_name", ["org/base", "embedded", "./base"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_what_was_written_is_read_back(
    tiny_base: Base, hub_task: Task, tmp_path: Path, name: str, base_name: str
) -> None:
    origin = export(tmp_path / "out", tiny_base, hub_task, name, base_name)
    found, state = read_peft_folder(tmp_path / "out", tiny_base)
    assert found == origin
    again = initial_adapter(parse_adapter(name), tiny_base, 6, seed=3)
    assert encode_adapter(state) == encode_adapter(again)


@pytest.mark.parametrize("name", ADAPTERS)
def test_no_folder_of_the_exporting_machine_is_told(
    tiny_base: Base, hub_task: Task, tmp_path: Path, name: str
) -> None:
    export(tmp_path / "out", tiny_base, hub_task, name, str(tiny_base.folder.resolve()))
    for file in (tmp_path / "out").iterdir():
        assert str(tiny_base.folder.parent).encode() not in file.read_bytes()
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == f"./{tiny_base.folder.name}"


@pytest.mark.parametrize("name", ["head", "lora:2+head", "bias+head", "prompt:3+head"])
def test_a_tagger_is_read_back_with_its_types(tiny_base: Base, tmp_path: Path, name: str) -> None:
    export(tmp_path / "out", tiny_base, DRUGS, name, "org/base")
    found, state = read_peft_folder(tmp_path / "out", tiny_base)
    assert found.task == DRUGS
    assert encode_adapter(state) == encode_adapter(drawn(tiny_base, DRUGS, name))
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["task_type"] == "TOKEN_CLS"
    assert config.get("modules_to_save", ["classifier"]) == ["classifier"]


@pytest.mark.parametrize("name", ["lora:2", "bias", "prompt:3"])
def test_how_words_were_masked_is_read_back(tiny_base: Base, tmp_path: Path, name: str) -> None:
    export(tmp_path / "out", tiny_base, NOTES, name, "org/base")
    found, state = read_peft_folder(tmp_path / "out", tiny_base)
    assert found.task == NOTES
    assert encode_adapter(state) == encode_adapter(drawn(tiny_base, NOTES, name))


def test_a_head_behind_a_soft_prompt_has_a_folder_of_its_own_form(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    export(tmp_path / "out", tiny_base, hub_task, "prompt:3+head", "org/base")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"README.md", "smidgen.json", "smidgen_adapter.safetensors"}
    _, state = read_peft_folder(tmp_path / "out", tiny_base)
    assert encode_adapter(state) == encode_adapter(drawn(tiny_base, hub_task, "prompt:3+head"))
    (tmp_path / "out" / "smidgen_adapter.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"with smidgen\.json and smidgen_adapter\.safetensors"):
        read_peft_folder(tmp_path / "out", tiny_base)


def test_an_adapter_of_another_kind_of_task_is_told(tiny_base: Base, tmp_path: Path) -> None:
    export(tmp_path / "out", tiny_base, DRUGS, "lora:2+head", "org/base")
    origin = tmp_path / "out" / "smidgen.json"
    told = json.loads(origin.read_text())
    told["task"] |= {"kind": "mlm", "labels": []}
    origin.write_text(json.dumps(told))
    with pytest.raises(AdapterError, match="asks for masked words, which the base's own head"):
        read_peft_folder(tmp_path / "out", tiny_base)


PATHS = st.lists(st.text("ab. -_\\é", min_size=1).filter(str.strip), min_size=1).map("/".join)


@given(PATHS, st.sampled_from(["", "/", "./", "../", "~/"]))
def test_a_portable_name_is_its_own_and_has_no_folder_above(path: str, above: str) -> None:
    name = portable_name(above + path)
    assert portable_name(name) == name
    assert is_hub_name(name) or name.count("/") == 1 or name == "embedded"
    assert not loadable_name(name).startswith(("/", "~"))


def test_names_of_the_hub_and_of_the_embedded_base_stay() -> None:
    for name in ("bert-base-uncased", "org/base", "embedded"):
        assert portable_name(name) == name
    assert portable_name("/usr/lib/python3/edge_client/embedded/base") == "embedded"
    assert portable_name("C:\\models\\base") == portable_name("far/models/base") == "./base"
    assert open_base("embedded").peft_name == "embedded"
    assert loadable_name("embedded") == "./embedded"


def test_the_card_says_what_it_is_and_how_it_came_to_be(hub_task: Task) -> None:
    text = model_card("lora:8", "org/base", hub_task, CARD)
    front = text.split("---\n")[1].splitlines()
    assert front[:3] == ['base_model: "org/base"', "library_name: peft", "pipeline_tag: fill-mask"]
    assert front[3] == "license: apache-2.0"
    for said in (
        '"weather", by the word "weather"',
        '"{text} . this is about [MASK] ."',
        "- base: org/base (licence: apache-2.0)",
        "- rounds: 3\n- devices: 8\n- written: 2026-01-31 by smidgen 0.1.0",
        "| 0 | 0.400 |\n| 3 | 0.812 |",
        "smidgen client predict --adapter . --base org/base",
        'AutoPeftModel.from_pretrained(".")',
        "## What it is not",
    ):
        assert said in text, said


def test_the_card_of_a_tagger_names_types_and_tags() -> None:
    scores = Card(accuracies={0: 0.5, 2: 0.9}, entity_f1={0: 0.0, 2: 0.75})
    text = model_card("lora:8+head", "org/base", DRUGS, scores)
    for said in (
        "pipeline_tag: token-classification",
        '    "Chemical"\n    "Disease"\n',
        '    ["O", "B-Chemical", "I-Chemical", "B-Disease", "I-Disease"]\n',
        "| round | F1 of entities on the devices' test texts | accuracy of tags on",
        "| 2 | 0.750 | 0.900 |",
        "AutoPeftModelForTokenClassification.from_pretrained",
        'print(tag("a text"))',
    ):
        assert said in text, said


def test_the_card_of_a_language_model_tells_perplexity() -> None:
    scores = Card(accuracies={1: 0.25}, losses={0: 2.0, 1: 1e6, 2: 699.0})
    text = model_card("lora:8", "org/base", NOTES, scores)
    for said in (
        "pipeline_tag: fill-mask",
        "It was asked for 20% of the tokens, in whole words, of each training text.",
        "| round | perplexity on the devices' test texts | accuracy at masked tokens on",
        "| 0 | 7.389 | |",
        "| 1 | | 0.250 |",  # no number holds its perplexity
        "| 2 | 3.7e+303 | |",
        'AutoPeftModel.from_pretrained(".")',
    ):
        assert said in text, said


def test_the_card_says_that_and_why_peft_does_not_load_it(hub_task: Task) -> None:
    text = model_card("prompt:4+head", "./base", hub_task, CARD)
    assert "library_name: smidgen" in text and "from peft" not in text
    assert "PEFT does not load it: behind a soft prompt" in text
    assert 'smidgen.predict(["a text"], ".", base="./base")' in text


@pytest.mark.parametrize("adapter", ["prompt:4", "lora:4"])
def test_the_card_of_a_decoders_soft_prompt_warns_of_padding(hub_task: Task, adapter: str) -> None:
    text = model_card(adapter, "org/base", hub_task, CARD, is_causal=True)
    assert ("ask texts one by one" in text) == (adapter == "prompt:4")
    assert "one by one" not in model_card("prompt:4", "org/base", hub_task, CARD)


def test_what_is_not_known_is_not_told(hub_task: Task) -> None:
    text = model_card("head", "embedded", hub_task, Card())
    assert "base_model:" not in text and "pipeline_tag: text-classification" in text
    for unknown in ("- rounds", "- devices", "- written", "licen", "| round", "asked by"):
        assert unknown not in text
    text = model_card("lora:8", "./model.gguf", hub_task, Card(), is_causal=True)
    assert 'config = AutoConfig.from_pretrained("the model\'s Hugging Face folder")' in text


@given(st.text(min_size=1, max_size=199).filter(str.strip))
def test_no_label_breaks_out_of_the_card(label: str) -> None:
    task = Task("t", (label, f"{label}x"), ("{text} [MASK]",), {label: "a", f"{label}x": "b"})
    usual = Task("t", ("y", "yx"), ("{text} [MASK]",), {"y": "a", "yx": "b"})
    ours, plain = (model_card("head", "org/base", each, CARD) for each in (task, usual))
    assert len(ours.split("\n")) == len(plain.split("\n"))
    assert ours.count("\n#") == plain.count("\n#")


def test_a_licence_is_as_the_base_says_it(tiny_base: Base, tmp_path: Path) -> None:
    folder = write_tiny_base(tmp_path / "base")
    assert licence_of(open_base(str(folder))) == ""
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\nlicense: other\n")
    assert licence_of(open_base(str(folder))) == "mit"
    (folder / "README.md").write_text("---\nlanguage: en\n---\n# Base\n\nlicense: other\n")
    assert licence_of(open_base(str(folder))) == ""
    (folder / "README.md").write_bytes(b"\xff\xfe" * 99)
    assert licence_of(open_base(str(folder))) == ""
    assert licence_of(open_base("embedded")) == "other"


def test_an_adapter_is_written_over_an_exported_one_alone(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(out, tiny_base, hub_task, "lora:2", "org/base")
    export(out, tiny_base, hub_task, "bias", "org/base")
    assert read_peft_folder(out)[0].adapter == "bias"
    (out / "letters.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"holds other things, such as letters\.txt"):
        export(out, tiny_base, hub_task, "lora:2", "org/base")
    assert read_peft_folder(out)[0].adapter == "bias"


def test_an_adapter_of_another_base_or_shape_is_told_when_it_is_read(
    tiny_base: Base, hub_task: Task, tmp_path: Path
) -> None:
    export(tmp_path / "out", tiny_base, hub_task, "lora:2", "./elsewhere")
    other = open_base(str(write_tiny_base(tmp_path / "other", seed=1)))
    with pytest.raises(AdapterError, match=r"was trained on base \./elsewhere"):
        read_peft_folder(tmp_path / "out", other)
    state = initial_adapter(parse_adapter("lora:3"), tiny_base, 6, seed=3)
    weights = tmp_path / "out" / "adapter_model.safetensors"
    weights.write_bytes(encode_adapter(state))
    with pytest.raises(AdapterError, match=r"lora_A\.weight is \(3, 16\), base .* wants \(2, 16\)"):
        read_peft_folder(tmp_path / "out", tiny_base)
    state = initial_adapter(parse_adapter("lora:2@q"), tiny_base, 6, seed=3)
    weights.write_bytes(encode_adapter(state))
    with pytest.raises(AdapterError, match=r"no tensor .*, which base"):
        read_peft_folder(tmp_path / "out", tiny_base)
