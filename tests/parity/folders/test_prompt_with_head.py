"""A head behind a soft prompt reads the text's first token: against a torch model put together."""

from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.peft_folder import Exported, read_peft_folder, write_peft_folder
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS
from tests.parity.test_against_transformers import TEXTS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAME = "prompt:5+head"


def reference(base: Base, state: AdapterState, ids: list[int]) -> np.ndarray:
    """The prompt's rows before the text's in `inputs_embeds`; pooler and classifier by hand."""
    model = transformers.AutoModel.from_pretrained(base.folder, dtype=torch.float32).eval()
    tensors = {name: torch.from_numpy(one) for name, one in state.items()}
    soft = tensors["prompt_embeddings"]
    with torch.no_grad():
        words = model.get_input_embeddings()(torch.tensor(ids))
        states = model(inputs_embeds=torch.cat([soft, words])[None]).last_hidden_state[0]
        h, names = states[len(soft)], ("bert.pooler.dense", "classifier")
        (w, b), (v, c) = (
            (tensors[f"base_model.model.{name}.weight"], tensors[f"base_model.model.{name}.bias"])
            for name in names
        )
        logits = torch.tanh(h @ w.T + b) @ v.T + c
    found: np.ndarray = torch.log_softmax(logits, -1).numpy()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_read_at_the_texts_first_token(
    real_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    spec = parse_adapter(NAME)
    engine = open_engine(kind, real_base, hub_task, spec, Training(lr=0.01))
    train(engine, TEXTS, Training(epochs=3), seed=1)
    origin = Exported(NAME, "org/base", real_base.base_id, "bert", hub_task)
    write_peft_folder(tmp_path, origin, encode_adapter(engine.adapter()))
    _, state = read_peft_folder(tmp_path, real_base)
    assert encode_adapter(state) == encode_adapter(engine.adapter())
    for prompt, ours in zip(engine.encoder.prompts(TEXTS), engine.predict(TEXTS), strict=True):
        theirs = reference(real_base, state, prompt.ids)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
