"""A frozen model over memory-mapped weights, layer by layer, forward and backward.

Backward does not use one big graph: each layer is a small graph of its own, kept from forward or
recomputed from the layer's input, as the plan says. Gradients are exact either way
(`tests/parity/test_gradients.py`). After each layer its mapped pages are released.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from smidgen.edge_client.adapters.spec import (
    PREFIX,
    AdapterSpec,
    ModuleRank,
    frozen_layers,
    head_linears,
    lora_modules,
)
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import family_of, has_bias, has_embedding_map
from smidgen.edge_client.bases.layout import module_rows
from smidgen.edge_client.engine.backend import ExitMonitor, going_on
from smidgen.edge_client.engine.frozen_base import FrozenBase
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.torch_backend.head import Classifier, Head, Transform, Words
from smidgen.edge_client.engine.torch_backend.layers import (
    ACTIVATIONS,
    Context,
    Layer,
    Linear,
    Norm,
    Place,
    run_layer,
)
from smidgen.edge_client.engine.torch_backend.matrices import FrozenMatrix, Scratch
from smidgen.edge_client.engine.torch_backend.micro_batch import Pass, open_pass
from smidgen.edge_client.planning.plan import Plan, reads_mean
from smidgen.edge_client.tasks.kind import Loss
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState

# Half precision loses small gradients below 6e-8; scaled by this they are kept.
LOSS_SCALE = {torch.float16: 1024.0}


class Network:
    """A frozen base and one adapter's tensors, without a tokenizer and without an optimizer.

    Args:
        base: Weights and shape.
        spec: Adapter.
        state: The adapter's values, PEFT's names.
        label_words: Token ids asked for at the mask; empty for a classifier; None: all words are.
        device: `cpu` or a CUDA device.

    Attributes:
        prefix: Keeps what the layers below all training give; None: they are computed each time.
        layer_forwards: Texts times layers computed so far; backward counts two.
    """

    def __init__(
        self,
        base: Base,
        spec: AdapterSpec,
        state: AdapterState,
        label_words: Sequence[Sequence[int]] | None,
        device: str = "cpu",
        loss: Loss = "softmax",
    ) -> None:
        self.shape, self.spec, self.loss = base.shape, spec, loss
        self.prefix: FrozenPrefix | None = None
        self.layer_forwards = 0
        self.frozen, self.family = FrozenBase(base), family_of(base.architecture)
        self.device, self._scratch = torch.device(device), Scratch()
        self.adapter = {
            name: torch.from_numpy(array.astype(np.float32)).to(self.device).requires_grad_()
            for name, array in state.items()
        }
        modules = lora_modules(spec, self.shape)
        self._layers = [self._layer(index, modules) for index in range(self.shape.stored_layers)]
        self._places = [self._place(index) for index in range(self.shape.layers)]
        if self.family.embedding_norm:
            self._embedding_norm = self._norm(self.family.embedding_norm)
        if has_embedding_map(self.shape):
            self._embedding_map = self._linear(self.family.embedding_map)
        if self.family.final_norm:
            self._final_norm = self._norm(self.family.final_norm)
        self._head = self._open_head(label_words)
        self.frozen.release_all()

    # Parts

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _bias(self, module: str, is_biased: bool, rows: slice | None = None) -> Tensor | None:
        """The adapter's bias of a module if it has one, else the base's rows of it."""
        trained = self.adapter.get(f"{PREFIX}{module}.bias")
        if trained is not None or not is_biased:
            return trained
        bias = self.frozen.vector(module, "bias")
        return self._tensor(bias if rows is None else bias[rows])

    def _norm(self, module: str) -> Norm:
        weight = self._tensor(self.frozen.norm_weight(module))
        bias = self._bias(module, has_bias(self.shape, "norm"))
        return Norm(weight, bias, self.shape.norm_eps, self.family.is_rms)

    def _linear(
        self, module: str, is_biased: bool = True, scaling: float = 0.0, rows: slice | None = None
    ) -> Linear:
        return Linear(
            FrozenMatrix(self.frozen.matrix(module, rows), self.device, self._scratch),
            self._bias(module, is_biased, rows),
            self.adapter.get(f"{PREFIX}{module}.lora_A.weight"),
            self.adapter.get(f"{PREFIX}{module}.lora_B.weight"),
            scaling,
            rows,
        )

    def _layer(self, index: int, modules: Mapping[str, ModuleRank]) -> Layer:
        linears = {}
        for target in self.family.linears:
            module, rows = self.family.linear(index, target), module_rows(self.shape, target)
            scaling = modules[module].scaling if module in modules else 0.0
            linears[target] = self._linear(module, has_bias(self.shape, target), scaling, rows)
        norms = {name: self._norm(module) for name, module in self.family.norms(index).items()}
        self.frozen.release_all()  # the kernel maps up to megabytes around each vector
        shape = self.shape
        return Layer(linears, norms, shape.activation, shape.head_dim, shape.is_decoder)

    def _place(self, index: int) -> Place:
        below = self.layer_of(index - 1) if index else None
        is_top = index == self.shape.layers - 1
        block, short = (self.family.block_of(index, is_short) for is_short in (False, is_top))
        is_turned, window = self.shape.is_turned(index), self.shape.window_of(index)
        return Place(block, short, below, is_turned, window)

    def _transform(self) -> Transform | None:
        """What a masked model's head does before it compares; a decoder's compares at once."""
        if not self.family.head_dense:
            return None
        return Transform(
            self._linear(self.family.head_dense, has_bias(self.shape, "head")),
            ACTIVATIONS[self.frozen.head_activation],
            self._norm(self.family.head_norm),
        )

    def _open_head(self, label_words: Sequence[Sequence[int]] | None) -> Head:
        activation = ACTIVATIONS[self.family.classifier_activation]
        if self.spec.head:
            names = head_linears(self.shape.architecture, self.adapter)
            parts = [(self.adapter[f"{x}.weight"], self.adapter[f"{x}.bias"]) for x in names]
            transform = self._transform() if self.family.is_classifier_on_head else None
            return Classifier(parts, activation, self.loss, transform)
        transform = self._transform()
        if label_words is None:
            return Words(transform, self._head_rows, self._tensor(self.frozen.vocabulary_bias()))
        rows, bias = map(self._tensor, self.frozen.label_rows(label_words))
        return Classifier([(rows, bias)], activation, self.loss, transform)

    # Forward

    def layer_of(self, index: int) -> Layer:
        """The weights of a computed layer; ALBERT's layers share theirs."""
        return self._layers[self.frozen.stored_layer(index)]

    def _pass(self, batch: Batch, dtype: torch.dtype) -> Pass:
        run = open_pass(batch, self.frozen, self.spec.prompt_tokens, self.device, dtype)
        if reads_mean(self.spec, self.shape, is_of_words=batch.texts is not None):
            run = replace(run, context=replace(run.context, answers=None), is_of_mean=True)
        return run

    def _embed(self, run: Pass) -> Tensor:
        """Embeddings as the lowest layer sees them, (N, H) or (B, P + T, H), see `Context`.

        A graph only for a prompt.
        """
        h = self._tensor(self.frozen.words(run.ids.cpu().numpy()))  # (B, T, embedding)
        prompt = self.adapter.get("prompt_embeddings")
        if prompt is not None:
            h = torch.cat((prompt.expand(len(h), *prompt.shape), h), dim=1)  # (B, P + T, ...)
        for table in self.frozen.places(h.shape[1], run.segments, self.spec.prompt_tokens):
            h = h + self._tensor(table)
        h = run.context.unpadded(h)
        if self.family.embedding_norm:
            h = self._embedding_norm(h)
        h = h.to(run.dtype)
        if has_embedding_map(self.shape):
            h = self._embedding_map(h)
        return h

    def _through(
        self, index: int, x: Tensor, context: Context, is_value_needed: bool = True
    ) -> Tensor:
        self.layer_forwards += len(context.starts)
        layer, place = self.layer_of(index), self._places[index]
        return run_layer(layer, place, x, context, is_value_needed)

    def _after(self, index: int, x: Tensor) -> Tensor:
        """The states behind a computed layer, of its result; -1: of the embeddings."""
        is_last = index == self.shape.layers - 1
        if self.family.final_norm:
            return self._final_norm(x) if is_last else x
        return self.layer_of(index).norms["output_norm"](x) if index >= 0 else x

    def _seen(self, x: Tensor, run: Pass) -> Tensor:
        """What the head sees, (answers, H), of the top layer's sum."""
        if run.is_of_mean:
            states = self._after(self.shape.layers - 1, x).float()
            return run.mean(run.context.padded(states)).to(x.dtype)
        x = x.flatten(0, -2)
        x = x if run.places is None else x[run.places]
        return self._after(self.shape.layers - 1, x)

    @torch.no_grad()
    def states(self, batch: Batch, dtype: str) -> Iterator[Tensor]:
        """Token states after the embeddings and after each layer, (N, H), one at a time.

        Those of one text behind those of another, without padding and soft prompts. The encoders'
        top layer is computed for all tokens here.
        """
        run, own = self._pass(batch, getattr(torch, dtype)), self._tensor(batch.attention == 1)
        context, prompt = replace(run.context, answers=None), self.spec.prompt_tokens
        x = self._embed(run)
        yield context.padded(x)[:, prompt:][own]
        for index in range(self.shape.layers):
            x = self._through(index, x, context)
            self.frozen.release_layer(index)
            yield self._after(index, context.padded(x)[:, prompt:][own])

    def logits(self, batch: Batch, dtype: str) -> Tensor:
        """Label logits, float32, (B, labels)."""
        return self.read(batch, dtype)[1]

    @torch.no_grad()
    def read(
        self, batch: Batch, dtype: str, watch: ExitMonitor | None = None
    ) -> tuple[np.ndarray, Tensor]:
        """The texts that passed all layers, ascending, and their label logits, float32.

        Those that the watch lets go leave the batch; layers below the cut of a `prefix` are not
        shown to it.
        """
        run = self._pass(batch, getattr(torch, dtype))
        start, x = self._entry(batch, run)
        places = self._tensor(batch.mask_positions) + self.spec.prompt_tokens
        rows = np.arange(len(batch.ids))
        for index in range(start, self.shape.layers):
            if watch is not None and index in watch.layers:
                h = self._after(index - 1, run.context.at(x, places[rows])).squeeze(1)  # (B, H)
                left = going_on(watch, index, rows, h.float().cpu().numpy())
                some = run.some(left)
                x = some.context.unpadded(run.context.padded(x)[left])
                rows, run = rows[left], some
            if not len(rows):
                return rows, x.new_empty((0, 0), dtype=torch.float32)
            x = self._through(index, x, run.context)
            self.frozen.release_layer(index)
        return rows, self._head.logits(self._seen(x, run)).float()

    @torch.no_grad()
    def judge(self, batch: Batch, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """Each answer's cross-entropy in nats, and whether it is the likeliest; both (answers,)."""
        run = self._pass(batch, getattr(torch, dtype))
        start, x = self._entry(batch, run)
        for index in range(start, self.shape.layers):
            x = self._through(index, x, run.context)
            self.frozen.release_layer(index)
        losses, is_right = self._head.judge(self._seen(x, run), self._tensor(batch.labels))
        return losses.float().cpu().numpy(), is_right.cpu().numpy()

    def _entry(self, batch: Batch, run: Pass) -> tuple[int, Tensor]:
        """The lowest layer that is left to compute, and what it gets.

        With a prefix that is the sum at the cut, or (B, 1, H) above all layers.
        """
        if self.prefix is None:
            return 0, self._embed(run)
        is_short = self.prefix.layers == self.shape.layers and run.context.answers is not None
        tokens = 1 if is_short else run.ids.shape[1]
        states = np.empty((len(run.ids), tokens, self.shape.hidden), np.float32)
        name = str(run.dtype).removeprefix("torch.")
        part = batch.some(slice(None))
        self.prefix.states(
            part, name, lambda some: self._below_cut(some, run.dtype), states, is_short
        )
        return self.prefix.layers, run.context.unpadded(self._tensor(states).to(run.dtype))

    @torch.no_grad()
    def _below_cut(self, batch: Batch, dtype: torch.dtype) -> np.ndarray:
        """What the prefix keeps: the sum that its highest layer gives."""
        run = self._pass(batch, dtype)
        x = self._embed(run)
        for index in range(frozen_layers(self.spec, self.shape.layers)):
            x = self._through(index, x, run.context)
            self.frozen.release_layer(index)
        return run.context.padded(x).float().cpu().numpy()

    # Backward

    def backward(self, batch: Batch, plan: Plan) -> float:
        """Add the gradient of the batch's mean loss to the adapter's tensors.

        Whatever the plan, the gradient is the same up to rounding, but for `depth`: adapters of
        layers below it get none.

        Returns:
            The mean loss in nats.
        """
        loss, dtype = 0.0, getattr(torch, plan.dtype)
        for start in range(0, len(batch.ids), plan.micro_batch):
            part = batch.some(slice(start, start + plan.micro_batch))
            share = len(part.labels) / len(batch.labels)
            loss += share * self._backward_part(part, plan, dtype, share)
        if scale := LOSS_SCALE.get(dtype):
            for tensor in self.adapter.values():
                if tensor.grad is not None:
                    tensor.grad /= scale
        return loss

    def _backward_part(self, batch: Batch, plan: Plan, dtype: torch.dtype, share: float) -> float:
        run, layers = self._pass(batch, dtype), self.shape.layers
        lowest = max(layers - plan.depth, frozen_layers(self.spec, layers))
        has_prompt = self.spec.prompt_tokens > 0
        assert not (has_prompt and lowest), "a soft prompt lies below all layers"
        with torch.set_grad_enabled(has_prompt):
            start, embedded = self._entry(batch, run)
        x, tapes = embedded.detach(), []
        for index in range(start, layers):
            is_kept = index >= lowest and index not in plan.recompute
            entry = x.requires_grad_(index > lowest or has_prompt)
            with torch.set_grad_enabled(is_kept):
                out = self._through(index, entry, run.context)
            self.frozen.release_layer(index)
            if index >= lowest:
                tapes.append((entry, out if is_kept else None))
            x = out.detach()
        scale = share * LOSS_SCALE.get(dtype, 1.0)
        loss, grad = self._loss(x, batch, run, scale)
        self._walk_back(tapes, lowest, grad, run)
        if has_prompt:
            embedded.backward(tapes[0][0].grad)
        return loss

    def _walk_back(
        self,
        tapes: list[tuple[Tensor, Tensor | None]],
        lowest: int,
        grad: Tensor,
        run: Pass,
    ) -> None:
        """Backward through the layers from the top; each tape is dropped when it is used."""
        for index in range(self.shape.layers - 1, lowest - 1, -1):
            entry, out = tapes[index - lowest]
            if out is None:
                with torch.enable_grad():
                    out = self._through(index, entry, run.context, is_value_needed=False)
            if out.requires_grad:
                out.backward(grad)
                self.layer_forwards += 2 * len(run.context.starts)
            self.frozen.release_layer(index)
            if entry.grad is not None:
                grad = entry.grad
            if index > lowest:
                tapes.pop()
                del entry, out

    def _loss(self, x: Tensor, batch: Batch, run: Pass, scale: float) -> tuple[float, Tensor]:
        """The part's mean loss, and `scale` times its gradient at the top layer's sum."""
        x = x.requires_grad_()
        with torch.enable_grad():
            loss = self._head.backward(self._seen(x, run), batch, scale)
        assert x.grad is not None
        return loss, x.grad

    def _head_rows(self, start: int, end: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, end) of every word's."""
        rows = self.frozen.weights.rows(self.frozen.decoder, np.arange(start, end))
        return self._tensor(rows).to(dtype)

    def stream(self, is_streamed: bool) -> None:
        """On a card: whether stored weights are copied there at each use, and not kept."""
        self._scratch.is_streamed = is_streamed

    def rest(self) -> None:
        self._scratch.clear()

    def close(self) -> None:
        self._layers.clear()
        self.frozen.close()
