"""A frozen model over its mapped weights, walked layer by layer, forward and back.

Backward is written out, not left to one big graph: a layer is a small graph of its own, either
kept from forward or recomputed from the layer's input, as the plan says. Gradients are exact
either way (`tests/parity/test_gradients.py`). After a layer its pages of the map are given back.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from edge_client.adapters.spec import PREFIX, AdapterSpec, frozen_layers, head_linears
from edge_client.bases.architectures import FAMILIES, has_bias, has_embedding_map
from edge_client.bases.base import Base
from edge_client.engine.frozen_base import FrozenBase
from edge_client.engine.frozen_prefix import FrozenPrefix, some_of
from edge_client.engine.torch_backend.head import Cloze, Head, Trained, Transform, Words
from edge_client.engine.torch_backend.layers import (
    ACTIVATIONS,
    Context,
    Layer,
    Linear,
    Norm,
    at,
    decoder_layer,
    encoder_layer,
    streamed_cross_entropy,
)
from edge_client.engine.torch_backend.matrices import FrozenMatrix, Scratch
from edge_client.engine.torch_backend.micro_batch import Pass, open_pass
from edge_client.engine.watch import Watch, going_on
from edge_client.planning.plan import Plan
from edge_client.tasks.kind import Loss
from edge_client.texts.batches import Batch
from edge_client.wire.tensors import AdapterState

# Half precision loses small gradients below 6e-8; scaled by this they are kept.
LOSS_SCALE = {torch.float16: 1024.0}


class Network:
    """A frozen base and one adapter's tensors, without a tokenizer and without an optimizer.

    Args:
        base: Weights and shape.
        spec: Adapter.
        state: The adapter's values, PEFT's names.
        label_words: Token ids asked for at the mask; empty for a classifier and for decoders;
            None: all words are.
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
        self.frozen, self.family = FrozenBase(base), FAMILIES[base.architecture]
        self.device, self._scratch = torch.device(device), Scratch()
        self.adapter = {
            name: torch.from_numpy(array.astype(np.float32)).to(self.device).requires_grad_()
            for name, array in state.items()
        }
        self._layers = [self._layer(index) for index in range(self.shape.stored_layers)]
        if self.family.embedding_norm:
            self._embedding_norm = self._norm(self.family.embedding_norm)
        if has_embedding_map(self.shape):
            self._embedding_map = self._linear(self.family.embedding_map)
        if self.shape.is_decoder:
            self._final_norm = self._norm(self.family.final_norm)
        else:
            self._head = self._open_head(label_words)
        self.frozen.release_all()

    # Parts

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _bias(self, module: str) -> Tensor:
        """The adapter's bias of a module if it has one, else the base's."""
        trained = self.adapter.get(f"{PREFIX}{module}.bias")
        return self._tensor(self.frozen.vector(module, "bias")) if trained is None else trained

    def _norm(self, module: str) -> Norm:
        bias = None if self.shape.is_decoder else self._bias(module)
        weight = self._tensor(self.frozen.vector(module, "weight"))
        return Norm(weight, bias, self.shape.norm_eps)

    def _matrix(self, module: str) -> FrozenMatrix:
        return FrozenMatrix(self.frozen.matrix(module), self.device, self._scratch)

    def _linear(self, module: str, is_biased: bool = True, scaling: float = 0.0) -> Linear:
        return Linear(
            self._matrix(module),
            self._bias(module) if is_biased else None,
            self.adapter.get(f"{PREFIX}{module}.lora_A.weight"),
            self.adapter.get(f"{PREFIX}{module}.lora_B.weight"),
            scaling,
        )

    def _layer(self, index: int) -> Layer:
        prefix = self.frozen.layer_prefix(index)
        return Layer(
            {
                target: self._linear(
                    prefix + module,
                    has_bias(self.shape, target),
                    self.spec.module_rank(index, target, self.shape.layers).scaling,
                )
                for target, module in self.family.linears.items()
            },
            self._norm(prefix + self.family.attention_norm),
            self._norm(prefix + self.family.output_norm),
            self.shape.activation,
            self.shape.head_dim,
            self.shape.kv_heads,
        )

    def _open_head(self, label_words: Sequence[Sequence[int]] | None) -> Head:
        family = self.family
        if self.spec.head:
            names = head_linears(self.shape.architecture, self.adapter)
            parts = [(self.adapter[f"{x}.weight"], self.adapter[f"{x}.bias"]) for x in names]
            return Trained(parts, ACTIVATIONS[family.classifier_activation], self.loss)
        transform = Transform(
            self._linear(family.head_dense),
            ACTIVATIONS[self.frozen.head_activation],
            self._norm(family.head_norm),
        )
        if label_words is None:
            return Words(transform, self._head_rows, self._tensor(self.frozen.vocabulary_bias()))
        rows, bias = self.frozen.label_rows(label_words)
        return Cloze(transform, self._tensor(rows), self._tensor(bias), self.loss)

    # Forward

    def layer_of(self, index: int) -> Layer:
        """The weights of a computed layer; ALBERT's layers share theirs."""
        return self._layers[self.frozen.stored_layer(index)]

    def _pass(self, batch: Batch, dtype: torch.dtype) -> Pass:
        return open_pass(batch, self.shape, self.spec.prompt_tokens, self.device, dtype)

    def _embed(self, run: Pass) -> Tensor:
        """Embeddings as the lowest layer sees them, (B, P + T, H); graph only for a prompt."""
        h = self._tensor(self.frozen.words(run.ids.cpu().numpy()))  # (B, T, embedding)
        prompt = self.adapter.get("prompt_embeddings")
        if prompt is not None:
            h = torch.cat((prompt.expand(len(h), *prompt.shape), h), dim=1)  # (B, P + T, ...)
        for table in self.frozen.places(h.shape[1], run.segments, self.spec.prompt_tokens):
            h = h + self._tensor(table)
        if self.family.embedding_norm:
            h = self._embedding_norm(h)
        h = h.to(run.dtype)
        if has_embedding_map(self.shape):
            h = self._embedding_map(h)  # (B, P + T, H)
        return h

    def _through(
        self, index: int, x: Tensor, context: Context, is_value_needed: bool = True
    ) -> Tensor:
        self.layer_forwards += len(x)
        layer = self.layer_of(index)
        if self.shape.is_decoder:
            return decoder_layer(layer, x, context, is_value_needed)
        below = self.layer_of(index - 1) if index else None
        is_top = index == self.shape.layers - 1
        return encoder_layer(layer, below, x, context, is_top, is_value_needed)

    def _seen(self, x: Tensor, run: Pass) -> Tensor:
        """What the head sees, (answers, H), of the top layer's sum (B, T, H), or (B, 1, H)."""
        x = x.flatten(0, 1)
        x = x if run.places is None else x[run.places]
        return self.layer_of(self.shape.layers - 1).output_norm(x)

    @torch.no_grad()
    def states(self, batch: Batch, dtype: str) -> Iterator[Tensor]:
        """Token states after the embeddings and after each layer, (B, P + T, H), one at a time.

        The encoders' top layer is computed for all tokens here.
        """
        run = self._pass(batch, getattr(torch, dtype))
        context = Context(run.context.mask, None, run.context.rotary)
        x = self._embed(run)
        yield x
        for index in range(self.shape.layers):
            x = self._through(index, x, context)
            self.frozen.release_layer(index)
            is_last = index == self.shape.layers - 1
            if not self.shape.is_decoder:
                yield self.layer_of(index).output_norm(x)
            else:
                yield self._final_norm(x) if is_last else x

    def logits(self, batch: Batch, dtype: str) -> Tensor:
        """Label logits, float32, (B, labels)."""
        return self.read(batch, dtype)[1]

    @torch.no_grad()
    def read(
        self, batch: Batch, dtype: str, watch: Watch | None = None
    ) -> tuple[np.ndarray, Tensor]:
        """The texts that passed all layers, ascending, and their label logits, float32.

        Those that the watch lets go leave the batch; layers below the cut of a `prefix` are not
        shown to it.
        """
        run = self._pass(batch, getattr(torch, dtype))
        start, x = self._entry(batch, run)  # (B, P + T, H), or (B, 1, H)
        rows = np.arange(len(x))
        for index in range(start, self.shape.layers):
            if watch is not None and index in watch.layers:
                left = going_on(watch, index, rows, self._answers(index, x, run))
                rows, x, run = rows[left], x[left], run.some(left)
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

        With a prefix that is the sum at the cut, (B, T, H), or (B, 1, H) above all layers.
        """
        if self.prefix is None:
            return 0, self._embed(run)
        tokens = 1 if self.prefix.is_answer_only else run.ids.shape[1]
        states = np.empty((len(run.ids), tokens, self.shape.hidden), np.float32)
        name = str(run.dtype).removeprefix("torch.")
        part = some_of(batch, slice(None))
        self.prefix.states(part, name, lambda some: self._below_cut(some, run.dtype), states)
        return self.prefix.layers, self._tensor(states).to(run.dtype)

    @torch.no_grad()
    def _below_cut(self, batch: Batch, dtype: torch.dtype) -> np.ndarray:
        """What the prefix keeps: the sum that its highest layer gives."""
        run = self._pass(batch, dtype)
        x = self._embed(run)
        for index in range(frozen_layers(self.spec, self.shape.layers)):
            x = self._through(index, x, run.context)
            self.frozen.release_layer(index)
        return x.float().cpu().numpy()

    def _answers(self, index: int, x: Tensor, run: Pass) -> np.ndarray:
        """The answers' states after `index` layers, (B, H)."""
        assert run.context.answers is not None
        h = self.layer_of(index - 1).output_norm(at(x, run.context.answers))  # (B, 1, H)
        return h.squeeze(1).float().cpu().numpy()

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
            share = self._share(part, batch)
            loss += share * self._backward_part(part, plan, dtype, share)
        if scale := LOSS_SCALE.get(dtype):
            for tensor in self.adapter.values():
                if tensor.grad is not None:
                    tensor.grad /= scale
        return loss

    def _share(self, part: Batch, batch: Batch) -> float:
        """A part's weight in the mean: how many answers, or predicted tokens, it has."""
        if self.shape.is_decoder:
            return float(part.attention[:, 1:].sum() / batch.attention[:, 1:].sum())
        return len(part.labels) / len(batch.labels)

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
                self.layer_forwards += 2 * len(entry)
            self.frozen.release_layer(index)
            if entry.grad is not None:
                grad = entry.grad
            if index > lowest:
                tapes.pop()
                del entry, out

    def _loss(self, x: Tensor, batch: Batch, run: Pass, scale: float) -> tuple[float, Tensor]:
        """The part's mean loss, and `scale` times its gradient at the top layer's sum."""
        if self.shape.is_decoder:
            return self._causal_loss(x, run, scale)
        x = x.requires_grad_()
        with torch.enable_grad():
            loss = self._head.backward(self._seen(x, run), batch, scale)
        assert x.grad is not None
        return loss, x.grad

    def _causal_loss(self, x: Tensor, run: Pass, scale: float) -> tuple[float, Tensor]:
        """Next-token cross-entropy over real tokens; the head streams over the vocabulary."""
        prompt = self.spec.prompt_tokens
        x = x.requires_grad_()
        with torch.enable_grad():
            h = self._final_norm(x)[:, prompt:-1]  # (B, T - 1, H)
        is_real = run.attention[:, prompt + 1 :].bool()
        targets = run.ids[:, 1:][is_real]  # (real tokens,)
        losses, grad = streamed_cross_entropy(
            h.detach()[is_real],
            targets,
            lambda a, b: self._head_rows(a, b, run.dtype),
            self.shape.vocabulary,
        )
        whole = torch.zeros_like(h)  # (B, T - 1, H)
        whole[is_real] = grad * scale
        h.backward(whole)
        assert x.grad is not None
        return float(losses.mean()), x.grad

    def _head_rows(self, start: int, end: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, end) of every word's, whose pages go back before the next are read."""
        rows = self.frozen.weights.rows(self.frozen.decoder, np.arange(start, end))
        self.frozen.weights.release([self.frozen.decoder])
        return self._tensor(rows).to(dtype)

    def stream(self, is_streamed: bool) -> None:
        """On a card: whether stored weights are copied there at each use, and not kept."""
        self._scratch.is_streamed = is_streamed

    def rest(self) -> None:
        self._scratch.clear()

    def close(self) -> None:
        self._layers.clear()
        self.frozen.close()
