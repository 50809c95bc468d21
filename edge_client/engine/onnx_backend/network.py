"""A frozen model over memory-mapped weights, layer by layer, forward and backward, without torch.

The counterpart of `engine.torch_backend.network`: the same plans and gradients, in float32. As the
plan says, a layer's tape is kept from forward or recomputed from the layer's input, which may be
stored in float16. After each layer its mapped pages are released, after each matrix where the plan
says slices.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from smidgen.edge_client.adapters.spec import (
    PREFIX,
    AdapterSpec,
    ModuleRank,
    frozen_layers,
    head_linears,
    lora_modules,
)
from smidgen.edge_client.bases.architectures import Answers
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.families import has_bias, has_embedding_map
from smidgen.edge_client.bases.layout import module_rows
from smidgen.edge_client.engine.backend import ExitMonitor, first_rows, going_on
from smidgen.edge_client.engine.frozen_base import FrozenBase
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.engine.generation import KeyValueCache
from smidgen.edge_client.engine.onnx_backend import graphs
from smidgen.edge_client.engine.onnx_backend.head import Classifier, Head, Transform, Words
from smidgen.edge_client.engine.onnx_backend.layers import (
    Layer,
    Pass,
    PlacedLayer,
    Tape,
    compacted,
)
from smidgen.edge_client.engine.onnx_backend.operators import (
    Activation,
    Attention,
    FrozenMatrix,
    Gradients,
    Linear,
    Norm,
    Rotary,
    rotary_angles,
)
from smidgen.edge_client.engine.onnx_backend.workspace import ReadAhead, open_bench
from smidgen.edge_client.planning.layer_cost import sliced
from smidgen.edge_client.planning.plan import Plan, reads_mean
from smidgen.edge_client.tasks.kind import Loss
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.wire.tensors import AdapterState


class Network:
    """A frozen base and one adapter's arrays, without a tokenizer and without an optimizer.

    Args:
        base: Weights and shape.
        spec: Adapter.
        state: The adapter's values, PEFT's names.
        label_words: Token ids asked for at the mask; empty for a classifier; None: all words are.
        threads: That compute together; the first network of a process decides for all.

    Attributes:
        adapter: The adapter's arrays; who trains them changes them in place.
        prefix: Keeps what the layers below all training give; None: they are computed each time.
        layer_forwards: Texts times layers computed so far; backward counts two.
    """

    def __init__(
        self,
        base: Base,
        spec: AdapterSpec,
        state: AdapterState,
        label_words: Sequence[Sequence[int]] | None,
        threads: int,
        loss: Loss = "softmax",
    ) -> None:
        self.spec, self.shape, self.loss = spec, base.shape, loss
        self.prefix: FrozenPrefix | None = None
        self.layer_forwards = 0
        self.frozen = FrozenBase(base)
        self.adapter = {
            name: np.array(array, np.float32, order="C") for name, array in state.items()
        }
        self._bench = open_bench(threads)
        self._bench.ahead = ReadAhead(self.frozen.weights)
        modules, family = lora_modules(spec, self.shape), self.frozen.family
        self._layers = [self._layer(index, modules) for index in range(self.shape.stored_layers)]
        self._placed_layers = [self._placed(index) for index in range(self.shape.layers)]
        self._final_norm = self._norm(family.final_norm) if family.final_norm else None
        self._embedding_norm = self._norm(family.embedding_norm) if family.embedding_norm else None
        is_mapped = has_embedding_map(self.shape)
        self._embedding_map = self._linear(family.embedding_map) if is_mapped else None
        self._head = self._open_head(label_words)
        self.frozen.release_all()

    # Parts

    def _bias(
        self, module: str, is_biased: bool, rows: slice | None = None
    ) -> tuple[np.ndarray | None, bool]:
        """A module's bias, if it has one, and whether it is trained: the adapter's if it has it."""
        trained = self.adapter.get(f"{PREFIX}{module}.bias")
        if trained is None and not is_biased:
            return None, False
        bias = self.frozen.vector(module, "bias") if trained is None else trained
        return bias if rows is None else bias[rows], trained is not None

    def _norm(self, module: str) -> Norm:
        weight, eps = self.frozen.norm_weight(module), self.shape.norm_eps
        bias, is_trained = self._bias(module, has_bias(self.shape, "norm"))
        bias = np.zeros_like(weight) if bias is None else bias
        is_rms = self.frozen.family.is_rms
        return Norm(PREFIX + module, weight, bias, is_trained, eps, self._bench, is_rms)

    def _linear(
        self, module: str, is_biased: bool = True, scaling: float = 0.0, rows: slice | None = None
    ) -> Linear:
        release = partial(self.frozen.weights.release, [f"{module}.weight"])
        matrix = FrozenMatrix(self.frozen.matrix(module, rows), self._bench, release)
        name = PREFIX + module
        lora_b = self.adapter.get(f"{name}.lora_B.weight")
        return Linear(
            name,
            matrix,
            *self._bias(module, is_biased, rows),
            self.adapter.get(f"{name}.lora_A.weight"),
            lora_b if lora_b is None or rows is None else lora_b[rows],
            scaling,
            self._bench,
            rows,
        )

    def _layer(self, stored: int, modules: Mapping[str, ModuleRank]) -> Layer:
        family, linears = self.frozen.family, {}
        for target in family.linears:
            module, rows = family.linear(stored, target), module_rows(self.shape, target)
            scaling = modules[module].scaling if module in modules else 0.0
            linears[target] = self._linear(module, has_bias(self.shape, target), scaling, rows)
        norms = {name: self._norm(module) for name, module in family.norms(stored).items()}
        self.frozen.release_all()  # the kernel maps up to megabytes around each vector
        return Layer(
            linears,
            norms,
            Activation(self.shape.activation, self._bench),
            Attention(self.shape.head_dim, self._bench, self.shape.is_decoder),
            Rotary(self.shape.head_dim, self.shape.turned, self._bench),
            self._bench,
        )

    def _placed(self, index: int) -> PlacedLayer:
        """A computed layer; ALBERT's share their weights."""
        layer, below = (self._layers[self.frozen.stored_layer(i)] for i in (index, index - 1))
        is_top, family = index == self.shape.layers - 1, self.frozen.family
        block, short = (family.block_of(index, is_short) for is_short in (False, is_top))
        is_turned, window = self.shape.is_turned(index), self.shape.window_of(index)
        in_slices = sliced(self.shape, block), sliced(self.shape, short)
        own = is_turned, window, index
        return PlacedLayer(layer, block, short, in_slices, below if index else None, *own)

    def _transform(self) -> Transform | None:
        """What a masked model's head does before it compares; a decoder's compares at once."""
        family = self.frozen.family
        if not family.head_dense:
            return None
        return Transform(
            self._linear(family.head_dense, has_bias(self.shape, "head")),
            Activation(self.frozen.head_activation, self._bench),
            self._norm(family.head_norm),
            self.shape.embedding,
        )

    def _open_head(self, label_words: Sequence[Sequence[int]] | None) -> Head:
        family = self.frozen.family
        activation = Activation(family.classifier_activation, self._bench)
        known = activation, self._bench, self.loss
        if self.spec.head:
            names = head_linears(self.shape.architecture, self.adapter)
            parts = [(self.adapter[f"{x}.weight"], self.adapter[f"{x}.bias"]) for x in names]
            transform = self._transform() if family.is_classifier_on_head else None
            return Classifier(parts, names, *known, transform)
        transform = self._transform()
        if label_words is None:
            return Words(transform, self.frozen, self._bench)
        return Classifier([self.frozen.label_rows(label_words)], (), *known, transform)

    # Forward

    def _norm_after(self, index: int) -> Norm | None:
        """What makes states of a computed layer's result; None where it is these already."""
        if self._final_norm is None:
            return self._placed_layers[index].layer.norms["output_norm"]
        return self._final_norm if index == self.shape.layers - 1 else None

    def _after(self, index: int, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        norm = self._norm_after(index)
        return x if norm is None else norm.forward(x, out)

    def _pass(self, batch: Batch, cache: KeyValueCache | None = None) -> Pass:
        if self._bench.ahead is not None:
            self._bench.ahead.restart()
        first = 0 if cache is None else cache.tokens
        prompt = 0 if first else self.spec.prompt_tokens
        lengths, texts = batch.attention.sum(axis=1) + prompt, batch.texts
        tokens = int(lengths.max())
        if cache is None:
            self._bench.runtime.begin(int(lengths.sum()), tokens)
        of = slice(None) if texts is None else texts
        places = batch.mask_positions + prompt + first_rows(lengths)[of]
        is_short = texts is None and self.frozen.family.has(Answers)
        is_mean = reads_mean(self.spec, self.shape, is_of_words=texts is not None)
        answers, several = (places, None) if is_short else (None, places)
        answers = None if is_mean else answers
        shape, kinds = self.shape, self.shape.turned_kinds
        rotary = {is_local: rotary_angles(shape, is_local, tokens, first) for is_local in kinds}
        rest = False, batch.segments, rotary, is_mean, cache
        bias = self.frozen.score_bias(tokens)
        return Pass(batch.ids, lengths, prompt, bias, answers, several, *rest)

    def _summed(self, run: Pass, out: np.ndarray | None) -> np.ndarray:
        """Words, behind a soft prompt, with their places, (N, embedding); in `out` if given."""
        own = run.lengths - run.prompt
        ids = run.ids[np.arange(run.ids.shape[1]) < own[:, None]]  # (N - B * P,)
        h = self.frozen.words(ids, None if run.prompt else out)
        if run.prompt:
            prompt = self.adapter["prompt_embeddings"]
            words = np.split(h, np.cumsum(own)[:-1])
            h = np.concatenate([part for text in words for part in (prompt, text)])
        tokens = int(run.lengths.max())
        for table in self.frozen.places(tokens, run.segments, run.prompt):
            for text, states in enumerate(run.each(h)):
                states += (table if table.ndim == 2 else table[text])[: len(states)]
        return h

    def _embed(self, run: Pass, out: np.ndarray) -> np.ndarray | None:
        """Embeddings as the lowest layer sees them, (N, H).

        Returns:
            What their norm got, where a soft prompt will want it.
        """
        norm, mapped = self._embedding_norm, self._embedding_map
        summed = self._summed(run, out if norm is None and mapped is None else None)
        h = out if mapped is None else self._bench.rooms.take("embedded", summed.shape)
        if norm is not None:
            norm.forward(summed, h)
        elif summed.ctypes.data != h.ctypes.data:
            np.copyto(h, summed)
        if mapped is not None:
            mapped.forward(h, out)
        return summed if self.spec.prompt_tokens else None

    def _embed_back(self, summed: np.ndarray, run: Pass, g: np.ndarray, into: Gradients) -> None:
        """The soft prompt's share of the gradient at the embeddings."""
        if self._embedding_map is not None:
            g = self._embedding_map.backward(g, self._bench.rooms.take("embedded", summed.shape))
        if self._embedding_norm is not None:
            g = self._embedding_norm.backward(summed, g, g)
        prompts = np.stack([own[: run.prompt] for own in run.each(g)])  # (B, P, embedding)
        into.add("prompt_embeddings", prompts.sum(axis=0))

    def _up(
        self, index: int, x: np.ndarray, run: Pass, tape: Tape, name: str | None = None
    ) -> np.ndarray:
        """A layer's sum from the one below, in a named room or in one of two that take turns."""
        is_short = index == self.shape.layers - 1 and run.answers is not None
        shape = (run.texts, self.shape.hidden) if is_short else x.shape
        out = self._bench.rooms.take(name or f"x{(index + 1) % 2}", shape)
        self._placed_layers[index].forward(x, run, tape, out)
        self.layer_forwards += run.texts
        self.frozen.release_layer(index)
        return out

    def _tape(self, index: int, run: Pass, is_kept: bool = False) -> Tape:
        prefix = f"{index}." if is_kept else ""
        return self._placed_layers[index].tape(run, prefix)

    def states(self, batch: Batch) -> Iterator[np.ndarray]:
        """Token states after the embeddings and after each layer, (N, H), one at a time.

        Those of one text behind those of another, without a soft prompt's. The top layer is
        computed for all tokens here. An array is overwritten by the next.
        """
        run = replace(self._pass(batch), answers=None, places=None)
        x = self._bench.rooms.take("x0", (run.rows, self.shape.hidden))  # (N, H)
        self._embed(run, x)
        yield run.own(x)
        for index in range(self.shape.layers):
            x = self._up(index, x, run, self._tape(index, run))
            yield run.own(self._after(index, x, self._bench.rooms.take("h", x.shape)))

    def logits(self, batch: Batch, is_quick: bool = False) -> np.ndarray:
        """Label logits, (B, labels); quick: a pack of 8 bits is multiplied in int8."""
        return self.read(batch, is_quick)[1]

    def read(
        self, batch: Batch, is_quick: bool = False, watch: ExitMonitor | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The texts that passed all layers, ascending, and their answers' logits.

        Those that the watch lets go leave the batch; layers below the cut of a `prefix` are not
        shown to it, and never quick.
        """
        rows, top = self._tops(batch, is_quick, watch)
        return rows, self._head.forward(top) if len(rows) else np.empty((0, 0), np.float32)

    def extend(self, ids: np.ndarray, cache: KeyValueCache) -> np.ndarray:
        """The state (1, H) of the last of some more tokens (T,) of one text.

        Args:
            ids: The tokens behind those that the cache holds.
            cache: Gets their keys and values.
        """
        batch = Batch(ids[None], np.ones_like(ids[None]), np.array([len(ids) - 1]), np.array([-1]))
        run = replace(self._pass(batch, cache), answers=None, places=None)
        x = self._bench.rooms.take("x0", (run.rows, self.shape.hidden))
        self._embed(run, x)
        for index in range(self.shape.layers):
            x = self._up(index, x, run, self._tape(index, run))
        cache.tokens += run.rows
        return self._top_norm.forward(x[-1:], np.empty_like(x[-1:]))

    def answer(self, top: np.ndarray) -> np.ndarray:
        """The head's logits (B, labels or vocabulary) of states (B, H)."""
        return self._head.forward(top)

    def keep_dense(self, room_bytes: int) -> float:
        """Hold weights as float32, the head's first, as far as they fit; their share, 0 to 1.

        For generation, which uses each weight for one token at a time.
        """
        linears = [one.matrix for layer in self._layers for one in layer.linears.values()]
        words = 4 * self.shape.vocabulary * self.shape.embedding
        total = left = words + sum(one.dense_bytes for one in linears)
        if words <= room_bytes:
            self.frozen.keep_vocabulary()
            left, room_bytes = left - words, room_bytes - words
        for matrix in linears:
            if matrix.dense_bytes <= room_bytes:
                matrix.keep()
                self.frozen.release_all()  # what was read of the file would stay resident
                left, room_bytes = left - matrix.dense_bytes, room_bytes - matrix.dense_bytes
        return 1.0 - left / total

    def judge(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Each answer's cross-entropy in nats, and whether it is the likeliest; both (answers,)."""
        return self._head.judge(self._tops(batch, False, None)[1], batch.labels)

    def _tops(
        self, batch: Batch, is_quick: bool, watch: ExitMonitor | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The texts that passed all layers, and the states that the head reads of them."""
        run = replace(self._pass(batch), is_quick=is_quick)
        x, _ = self._enter(batch, run)  # (N, H), or (B, H) above all layers
        rows = np.arange(run.texts)
        for index in range(self._start, self.shape.layers):
            if watch is not None and index in watch.layers:
                places = run.starts + batch.mask_positions[rows] + run.prompt
                states = self._after(index - 1, x[places], np.empty_like(x[places]))
                left = going_on(watch, index, rows, states)
                rows, x, run = rows[left], compacted(x, run, left), run.some(left)
            if not len(rows):
                return rows, np.empty((0, self.shape.hidden), np.float32)
            x = self._up(index, x, run, self._tape(index, run))
        x = run.read(x)
        return rows, run.mean(self._top_norm.forward(x, np.empty_like(x)))

    @property
    def _start(self) -> int:
        """The lowest layer that the cached prefix does not cover."""
        return 0 if self.prefix is None else self.prefix.layers

    def _enter(
        self, batch: Batch, run: Pass, is_waiting: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """What the lowest layer left to compute gets, and `_embed`'s result.

        With a prefix that is the sum at the cut, (N, H), or (B, H) of the answers above all layers;
        it has a room of its own.

        Args:
            batch: The micro-batch.
            run: Its pass.
            is_waiting: Whether it lies where it will wait for backward.
        """
        is_short = self._start == self.shape.layers and run.answers is not None
        shape = (run.texts if is_short else run.rows, self.shape.hidden)
        is_own = is_waiting or self.prefix is not None
        x = self._bench.rooms.take(f"{self._start}.x" if is_own else "x0", shape)
        if self.prefix is None:
            return x, self._embed(run, x)
        part = batch.some(slice(None))
        self.prefix.states(part, "float32", self._below_cut, run.each(x), is_short)
        return x, None

    def _below_cut(self, batch: Batch) -> list[np.ndarray]:
        """What the prefix keeps of each text: the sum that its highest layer gives."""
        run = self._pass(batch)
        x = self._bench.rooms.take("x0", (run.rows, self.shape.hidden))
        self._embed(run, x)
        for index in range(self._start):
            x = self._up(index, x, run, self._tape(index, run))
        return run.each(x)

    @property
    def _top_norm(self) -> Norm:
        norm = self._norm_after(self.shape.layers - 1)
        assert norm is not None
        return norm

    def use(self, plan: Plan) -> None:
        """Make large matrices dense as a plan says."""
        self._bench.is_sliced = plan.is_sliced

    # Backward

    def backward(self, batch: Batch, plan: Plan) -> tuple[float, dict[str, np.ndarray]]:
        """The batch's mean loss in nats, and its gradients by the adapter's names.

        Whatever the plan, the gradients are the same up to rounding, but for `depth` (adapters of
        layers below it get none) and for inputs that wait in float16.
        """
        self.use(plan)
        loss, into = 0.0, Gradients(self._bench, self.adapter)
        for start in range(0, len(batch.ids), plan.micro_batch):
            part = batch.some(slice(start, start + plan.micro_batch))
            share = len(part.labels) / len(batch.labels)
            loss += share * self._backward_part(part, plan, share, into)
        return loss, into.tensors

    def _backward_part(self, batch: Batch, plan: Plan, share: float, into: Gradients) -> float:
        run, layers = self._pass(batch), self.shape.layers
        lowest = max(layers - plan.depth, frozen_layers(self.spec, layers))
        # An input lies where it will wait, but for one that is put aside.
        is_waiting = [index >= lowest and not plan.is_put_aside for index in range(layers)]
        names = [f"{index}.x" if waits else None for index, waits in enumerate(is_waiting)]
        names.append("x0" if is_waiting[-1] else None)  # of the top layer's own sum
        x, summed = self._enter(batch, run, is_waiting[0])
        tapes: dict[int, Tape] = {}
        for index, above in list(enumerate(names[1:]))[self._start :]:
            if plan.is_put_aside and index >= lowest:
                self._put_aside(index, x, plan)
            is_kept = index >= lowest and index not in plan.recompute
            tape = self._tape(index, run, is_kept)
            x = self._up(index, x, run, tape, above)
            if is_kept:
                tapes[index] = tape
        loss, g = self._answered(x, run, batch, share, lowest < layers, into)
        if lowest < layers:
            bottom_g = self._walk_back(run, plan, lowest, tapes, g, into)
            if summed is not None and bottom_g is not None:
                self._embed_back(summed, run, bottom_g, into)
        return loss

    def _answered(
        self,
        x: np.ndarray,
        run: Pass,
        batch: Batch,
        share: float,
        is_needed: bool,
        into: Gradients,
    ) -> tuple[float, np.ndarray]:
        """The head's loss, and the gradient at the top layer's sum where it is needed."""
        loss, g, norm, parts = 0.0, x, self._top_norm, run.read_parts(x.shape[1])
        for part in parts:
            seen = run.read(x, part)  # (B, H), a row for each answer
            top = run.mean(norm.forward(seen, np.empty_like(seen)))
            labels = batch.labels[part]
            weights = None if batch.weights is None else batch.weights[part]
            of_all = len(labels) / len(batch.labels) if len(parts) > 1 else 1.0
            known = labels, weights, share * of_all, into, batch.offsets
            own, g = self._head.backward(top, *known)
            loss += of_all * own
            if is_needed:
                g = run.mean_back(g, self._bench.rooms)
                norm.gradients(g, into)
                g = run.unread(norm.backward(seen, g, g), part, self._bench.rooms)
        return loss, g

    def _walk_back(
        self,
        run: Pass,
        plan: Plan,
        lowest: int,
        tapes: dict[int, Tape],
        g: np.ndarray | None,
        into: Gradients,
    ) -> np.ndarray | None:
        """Backward through the layers from the top; the gradient at the embeddings, if needed."""
        for index in range(self.shape.layers - 1, lowest - 1, -1):
            layer = self._placed_layers[index]
            entry, tape = self._waiting(index, run, plan), tapes.get(index)
            if tape is None:
                tape = self._tape(index, run)
                layer.forward(entry, run, tape, None)
                self.layer_forwards += run.texts
            assert g is not None
            is_needed = index > lowest or self.spec.prompt_tokens > 0
            g = layer.backward(entry, run, tape, g, is_needed, into)
            self.layer_forwards += 2 * run.texts
            self.frozen.release_layer(index)
        return g if self.spec.prompt_tokens else None

    def _put_aside(self, index: int, x: np.ndarray, plan: Plan) -> None:
        """Keep a layer's input in a file, or in float16, until backward."""
        if plan.is_spilled:
            return self._bench.spill.write(index * x.nbytes, x)
        half = self._bench.rooms.take(f"{index}.half", x.shape, np.float16)
        return self._bench.runtime.run("narrow", graphs.narrow, {"x": x}, {"y": half})

    def _waiting(self, index: int, run: Pass, plan: Plan) -> np.ndarray:
        """A layer's input, as forward left it."""
        shape = (run.rows, self.shape.hidden)
        if not plan.is_put_aside:
            return self._bench.rooms.take(f"{index}.x", shape)
        x = self._bench.rooms.take("x0", shape)
        if plan.is_spilled:
            return self._bench.spill.read(index * x.nbytes, x)
        half = self._bench.rooms.take(f"{index}.half", shape, np.float16)
        self._bench.runtime.run("widen", graphs.widen, {"x": half}, {"y": x})
        return x

    def rest(self) -> None:
        self._bench.rest()

    def close(self) -> None:
        self._layers.clear()
        self._bench.close()
        self.frozen.close()
