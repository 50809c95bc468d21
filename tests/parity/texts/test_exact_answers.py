"""An exact match is what greedy decoding by transformers and PEFT writes, text by text."""

import json
from pathlib import Path
from typing import Any

import pytest

import smidgen
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.tokens import Tokens
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")
ANSWERS = {"dim it": "off", "heat": "on", "fan": "stop", "door": "open", "gate": "shut"}
END = "<|im_end|>\n"


def test_a_conversation_is_exact_where_greedy_decoding_writes_its_answer(tmp_path: Path) -> None:
    base, data, out = write_tiny_decoder(tmp_path / "base"), tmp_path / "data", tmp_path / "out"
    data.mkdir()
    rows = [{"prompt": one, "completion": answer} for one, answer in ANSWERS.items()]
    rows += [{"prompt": "zzz", "completion": "not learned"}]
    for part, some in (("labelled", rows[:3]), ("test", rows)):
        (data / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    known: Any = {"task": Task("home", kind="chat"), "base": base, "engine": "onnx"}
    smidgen.train(data, out, **known, adapter="lora:8@q,v,k,o,up,down", epochs=120, lr=3e-2)
    found = smidgen.evaluate(data, out, base=base, engine="onnx")
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    model, tokens, exact = peft.PeftModel.from_pretrained(plain, out), Tokens(base), list[bool]()
    for row in rows:
        start = f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        ids, wanted = (tokens.asked_in(one, {}, [])[0] for one in (start, row["completion"] + END))
        asked = len(ids)
        for _ in wanted:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        exact.append(ids[asked:] == wanted)
    assert found.exact == sum(exact) / len(rows) and 0 < found.exact < 1


@pytest.mark.slow
def test_an_answer_that_is_cut_is_not_exact(tmp_path: Path) -> None:
    base, data = write_tiny_decoder(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    (data / "labelled.jsonl").write_text(json.dumps({"prompt": "sing", "completion": "a" * 200}))
    known: Any = {"task": Task("home", kind="chat"), "base": base, "engine": "onnx"}
    smidgen.train(data, tmp_path / "out", **known, adapter="lora:8@q,v,o", epochs=40, lr=3e-2)
    found = smidgen.evaluate(data / "labelled.jsonl", tmp_path / "out", base=base, engine="onnx")
    assert (found.accuracy, found.exact) == (1.0, 0.0)
