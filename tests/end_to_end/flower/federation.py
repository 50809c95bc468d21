"""A Flower app, run in Flower's environment: clients by PEFT and torch, and smidgen's seat.

A SuperNode whose `--node-config` names `peft` trains as its authors would do without smidgen: the
base by transformers, the adapter by PEFT, AdamW by torch. One that names `texts` is a smidgen
device. The server is FedAvg as Flower has it.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()  # flwr looks for an assignment to each name
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    if "texts" in context.node_config:
        from smidgen.edge_client.flower import app as seat  # ordinary nodes have no smidgen

        return seat.train(message, context)
    return Ordinary(message, context).train()


@client.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    if "texts" in context.node_config:
        from smidgen.edge_client.flower import app as seat

        return seat.evaluate(message, context)
    return Ordinary(message, context).evaluate()


class Ordinary:
    """A client by PEFT, transformers and torch."""

    def __init__(self, message: Message, context: Context) -> None:
        import torch
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        said, self._folder = context.run_config, Path(str(context.node_config["peft"]))
        self._message, self._lr = message, float(said["lr"])
        torch.manual_seed(0)
        torch.set_num_threads(1)
        base = str(said["path"])
        self._tokens = AutoTokenizer.from_pretrained(base)
        config = json.loads(Path(str(said["config"])).read_text())
        names = ("r", "lora_alpha", "lora_dropout", "target_modules")
        model = AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32)
        self._model = get_peft_model(model, LoraConfig(**{name: config[name] for name in names}))
        (self._key, record), *_ = message.content.array_records.items()
        set_peft_model_state_dict(
            self._model, {name: torch.from_numpy(one.numpy()) for name, one in record.items()}
        )
        self._words = dict(json.loads(str(said["words"])))

    def train(self) -> Message:
        import torch
        from peft import get_peft_model_state_dict

        asked = [one for one in self._model.parameters() if one.requires_grad]
        optimizer, losses, seen = torch.optim.AdamW(asked, self._lr, weight_decay=0.0), [], 0
        for logits, right in self._batches("labelled.csv"):
            loss = torch.nn.functional.cross_entropy(logits, right)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            seen += len(right)
        state = get_peft_model_state_dict(self._model)
        arrays = ArrayRecord({name: Array(one.detach().numpy()) for name, one in state.items()})
        metrics = MetricRecord({"num-examples": seen, "train_loss": float(np.mean(losses))})
        content = RecordDict({self._key: arrays, "metrics": metrics})
        return Message(content, reply_to=self._message)

    def evaluate(self) -> Message:
        import torch

        with torch.no_grad():
            judged = [
                (logits.argmax(-1) == right, torch.nn.functional.cross_entropy(logits, right))
                for logits, right in self._batches("test.csv")
            ]
        hits = torch.cat([hit for hit, _ in judged])
        found = {"accuracy": float(hits.float().mean()), "eval_loss": float(judged[0][1])}
        metrics = MetricRecord({"num-examples": len(hits), **found})
        return Message(RecordDict({"metrics": metrics}), reply_to=self._message)

    def _batches(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Logits of the label words at the mask, and the right ones, eight texts at a time."""
        import torch

        with (self._folder / name).open() as lines:
            rows = list(csv.DictReader(lines))
        words = self._tokens.convert_tokens_to_ids(list(self._words.values()))
        for at in range(0, len(rows), 8):
            some = rows[at : at + 8]
            asked = [f"{row['text']} . this is about {self._tokens.mask_token} ." for row in some]
            ids = self._tokens(asked, return_tensors="pt", padding=True)
            logits = self._model(**ids).logits[ids["input_ids"] == self._tokens.mask_token_id]
            right = torch.tensor([list(self._words).index(row["label"]) for row in some])
            yield logits[:, words], right


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    said = context.run_config
    nodes, rounds = int(said["nodes"]), int(said["rounds"])
    with np.load(str(said["first"])) as file:
        first = ArrayRecord({name: Array(file[name]) for name in file.files})
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=1.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
        train_metrics_aggr_fn=_each,
    )
    done = strategy.start(grid, first, num_rounds=rounds)
    every: dict[str, Any] = {name: one.numpy() for name, one in done.arrays.items()}
    np.savez(str(said["last"]), **every)
    trained = [dict(done.train_metrics_clientapp[index + 1]) for index in range(rounds)]
    judged = [dict(done.evaluate_metrics_clientapp[index + 1]) for index in range(rounds)]
    Path(str(said["said"])).write_text(json.dumps({"trained": trained, "judged": judged}))


def _each(replies: list[RecordDict], _weighted_by: str) -> MetricRecord:
    losses = [float(reply["metrics"]["train_loss"]) for reply in replies]
    return MetricRecord({"answers": len(replies), "losses": losses})
