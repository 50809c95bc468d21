import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.machine import kept_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scoring import mean_loss
from smidgen.coordinator.storage.reports import accuracies, entities_by_round, perplexities, rows
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.adapters.banks import net_of
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.edge_client.engine.limits import Limits
from smidgen.edge_client.tasks.counts import scores_of
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.fleet import device_id_of
from smidgen.edge_client.wire.tensors import decode_adapter, sha256
from smidgen.edge_client.wire.training import Labelling, Training
from smidgen.simulation.experiments.federation.devices import Round, schedule_of
from smidgen.simulation.experiments.federation.resume import recalled
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.stage import Stage, use_threads
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.clients import Client as Virtual
from smidgen.simulation.population.deal import Deal, write_clients
from tests.breadth import SLOW, first_fast
from tests.coordinator.conftest import serving
from tests.coordinator.devices import key_of
from tests.edge_client.engine.engines import KINDS
from tests.simulation.experiments.experiments import staged

GUARDED = {"norm_bound": "adaptive", "max_examples": "adaptive", "is_guarded": True}  # as runs are


def as_devices(on: Stage) -> Stage:
    """The same clients under the ids that devices have by their keys, in the order of these."""
    clients = [replace(one, name=device_id_of(key_of(one.name))) for one in on.population]
    return replace(on, population=tuple(sorted(clients, key=lambda one: one.name)))


def key_of_id(device_id: str) -> str:
    keys = [key_of(f"client-{number:04d}") for number in range(1, 10)]
    return next(key for key in keys if device_id_of(key) == device_id)


def ranks_of(on: Stage) -> dict[str, int]:
    """The most rank that each client takes, in turn."""
    ranks, names = on.experiment.ranks, [client.name for client in on.population]
    return dict(zip(names, ranks * len(names), strict=False))


def config_of(on: Stage) -> RunConfig:
    """The same experiment as a coordinator's run."""
    asked = on.experiment
    return RunConfig(
        "small",
        on.dataset.task,
        base=asked.base,
        adapter=asked.adapter,
        training=asked.training,
        updates=asked.updates,
        rounds=asked.rounds,
        fraction=1.0 if asked.labelling else asked.cohort / 3,
        max_cohort=asked.cohort,
        min_clients=3,
        min_updates=3 if asked.updates.secured else 1,
        evaluate_every=asked.evaluate_every,
        evaluate_share=asked.evaluate_share,
        keep=asked.keep,
        seed=asked.seed,
        learning=asked.learning,
        labelling=asked.labelling,
    )


def over_http(on: Stage, tmp_path: Path) -> tuple[str, dict[int, float], str]:
    """Of a real coordinator: hash of its adapter, accuracy by round, and the run's secret."""
    config = config_of(on)
    write_clients(tmp_path / "data", on.dataset.train, on.dataset.test, on.population, config.task)
    with closing(Store(tmp_path / "store")) as store, serving(store, config) as live:
        take_part(on, live.http.base_url, live.token, tmp_path)
        run = live.service.run(live.run_id)
        assert run.state.is_finished
        found = accuracies(rows(store, live.run_id))
        return kept_of(config, run.state)[1], found, run.run.secret


def take_part(on: Stage, url: object, token: str, folder: Path) -> None:
    """Every client to its end, each in a thread of its own."""
    names = [client.name for client in on.population]
    threads = [threading.Thread(target=client_of(on, url, token, name, folder)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def client_of(on: Stage, url: object, token: str, name: str, folder: Path) -> Callable[[], object]:
    data, kind = folder / "data" / name, on.experiment.engine
    limits = Limits(rank=ranks_of(on).get(name, 9999))
    settings = Settings(
        *(str(url), token, name, data, on.base, kind),
        wait_s=1.0,
        limits=limits,
        is_until_finished=True,
    )
    state = ClientState(folder / "state" / name)
    state.keep_identity(Identity("", key_of_id(name)))
    return Client(settings, state).run


PRODUCT = Learning(lora_mean="product")
LABELLING = Labelling(
    keep_first=0.5, keep_last=1.0, confidence=0.5, compute_share=1.0, early_exit=False
)


@pytest.mark.parametrize("kind", first_fast(KINDS[::-1]))
@pytest.mark.parametrize(
    ("adapter", "every"), [("lora:2", 1), pytest.param("lora:2+ridge", 2, marks=SLOW)]
)
def test_pseudo_labels_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, adapter: str, every: int
) -> None:
    deal = Deal(clients=3, labelled=8, labelled_clients=1)
    said = {
        "engine": kind,
        "adapter": adapter,
        "dtype": "auto",
        "deal": deal,
        "labelling": replace(LABELLING, infer_every=every),
        "evaluate_every": every,
        "rounds": 4 if "ridge" in adapter else 3,
    } | GUARDED
    on, seen = staged(tiny_base, hub_task, **said), list[Round]()
    on = as_devices(replace(on, gate=on.dataset.test))
    names, texts = [c.name for c in on.population], {c.name: len(c.labelled) for c in on.population}
    schedule = schedule_of(on.experiment, len(names), hub_task.labels)
    with closing(InProcess(on)) as devices:
        adapter_sha256, _, secret = over_http(on, tmp_path)
        known = (schedule, on.template(), devices.start(), names, devices, seen.append)
        last = federate(*known, texts=texts, secret=secret)
    assert sha256(last.adapter) == adapter_sha256
    looked = {one.round_index: one.looking for one in seen if one.looking}
    assert looked[3].texts_read and sum(texts.values()) == 8
    # The first round solves ridge regression, the last calibrates it.
    assert sorted(looked) == ([2, 3] if "ridge" in adapter else [1, 2, 3])
    assert any(not texts[client] for closed in seen for client in closed.cohort)


SCAFFOLD = Training(epochs=2, batch=2, lr=0.05, tokens=32, optimizer="sgd", scaffold=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_control_variates_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    said = {"engine": kind, "dtype": "auto", "training": SCAFFOLD, "rounds": 4} | GUARDED
    on, seen = as_devices(staged(tiny_base, hub_task, **said)), list[Round]()
    adapter, _, secret = over_http(on, tmp_path)
    names = [client.name for client in on.population]
    schedule = schedule_of(on.experiment, len(names))
    with closing(InProcess(on)) as devices:
        start = devices.start()
        last = federate(schedule, on.template(), start, names, devices, seen.append, secret=secret)
        free = replace(schedule, training=replace(SCAFFOLD, scaffold=False))
        template = replace(on.template(), training=free.training)
        other = federate(free, template, start, names, devices, secret=secret)
    assert sha256(last.adapter) == adapter != sha256(other.adapter)
    folders = [tmp_path / "state" / name / "updates" for name in names]
    assert not any(list(folder.iterdir()) for folder in folders if folder.is_dir())  # it is over


CODED = [
    Updates("int8"),
    Updates(secure_aggregation="int8"),
    Updates("int4"),
    Updates("topk:0.05"),
]


@pytest.mark.slow
@pytest.mark.parametrize("updates", CODED, ids=["int8", "masked", "int4", "topk"])
def test_coded_updates_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, updates: Updates
) -> None:
    said = {"engine": KINDS[0], "dtype": "auto", "updates": updates, "rounds": 3} | GUARDED
    said |= {"cohort": 3} if updates.secured else {}
    on, seen = as_devices(staged(tiny_base, hub_task, **said)), list[Round]()
    names = [client.name for client in on.population]
    schedule = schedule_of(on.experiment, len(names))
    texts = {client.name: len(client.labelled) for client in on.population}
    known = partial(federate, texts=texts if updates.secured else None)
    with closing(InProcess(on)) as devices:  # first: it says how many threads all engines have
        adapter, _, secret = over_http(on, tmp_path)
        start = devices.start()
        last = known(schedule, on.template(), start, names, devices, seen.append, secret=secret)
        halfway = seen[2].standing
        again = known(schedule, on.template(), halfway, names, devices, secret=secret)
    assert sha256(last.adapter) == sha256(again.adapter)
    assert sha256(last.adapter) == adapter
    with closing(Store(tmp_path / "store")) as store:
        [run] = store.runs()
        trained = [row for row in rows(store, run.run_id) if row["kind"] == "train"]
    over_wire = sum(row["cost"]["payload_up_bytes"] for row in trained)
    print(f"{updates.up}: {over_wire} bytes of updates went over HTTP")
    assert over_wire == sum(closed.bytes_up for closed in seen)
    folders = [tmp_path / "state" / name / "updates" for name in names]
    assert not any(list(folder.iterdir()) for folder in folders if folder.is_dir())  # it is over


def test_rounds_with_noise_under_masks_give_the_same_bytes_again(
    tiny_base: Base, hub_task: Task
) -> None:
    updates, privacy = Updates(secure_aggregation="int16"), Privacy(8.0, 0.5)
    said = {"engine": KINDS[0], "dtype": "auto", "updates": updates, "rounds": 2, "cohort": 3}
    on = as_devices(staged(tiny_base, hub_task, **said, privacy=privacy))
    names, seen = [client.name for client in on.population], list[Round]()
    schedule = schedule_of(on.experiment, len(names))
    texts = {client.name: len(client.labelled) for client in on.population}
    known = partial(federate, schedule, on.template(), names=names, texts=texts)
    with closing(InProcess(on)) as devices:
        last = known(start=devices.start(), devices=devices, on_round=seen.append)
        again = known(start=devices.start(), devices=devices)
        halfway = known(start=seen[1].standing, devices=devices)
    assert sha256(last.adapter) == sha256(again.adapter) == sha256(halfway.adapter)
    assert not any(one.trouble or one.errors for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_mixed_ranks_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    said = {"engine": kind, "dtype": "auto", "learning": PRODUCT, "adapter": "lora:4"} | GUARDED
    all_of_them = {"ranks": (1, 2, 4), "cohort": 3}
    on, seen = as_devices(staged(tiny_base, hub_task, **said, **all_of_them)), list[Round]()
    use_threads(on.experiment.threads)  # sums depend on them
    adapter, _, secret = over_http(on, tmp_path)
    names, ranks = [client.name for client in on.population], ranks_of(on)
    assert sorted(ranks.values()) == [1, 2, 4]
    with closing(InProcess(on)) as devices:
        known = (schedule_of(on.experiment, len(names)), on.template(), devices.start(), names)
        last = federate(*known, devices, seen.append, secret=secret, ranks=ranks)
        other = federate(*known, devices, secret=secret)  # all of them take rank 4
    assert sha256(last.adapter) == adapter != sha256(other.adapter)
    assert all(closed.lost is not None for closed in seen if closed.round_index)


@pytest.mark.slow
@pytest.mark.parametrize("net", ["generator", "rates"])
@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_a_net_for_adapters_is_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, net: str
) -> None:
    spec = parse_adapter(f"lora:4@q,k,v,o,up,down+{net}")
    said = {"engine": kind, "dtype": "auto", "adapter": str(spec)}
    on, seen = as_devices(staged(tiny_base, hub_task, **said, **GUARDED)), list[Round]()
    use_threads(on.experiment.threads)  # sums depend on them
    adapter, accuracy, secret = over_http(on, tmp_path)
    names = [client.name for client in on.population]
    with closing(InProcess(on)) as devices:
        known = (schedule_of(on.experiment, len(names)), on.template(), devices.start(), names)
        last = federate(*known, devices, seen.append, secret=secret)
        assert last.adapter != devices.start().adapter
    assert sha256(last.adapter) == adapter
    assert set(decode_adapter(last.adapter)) == set(net_of(spec, tiny_base.shape).shapes())
    assert accuracy == {}  # it answers no text


@pytest.mark.parametrize("learning", first_fast([Learning(), PRODUCT]), ids=["factors", "product"])
@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_in_process_gives_the_bytes_that_http_gives(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, learning: Learning
) -> None:
    said = {"engine": kind, "dtype": "auto", "learning": learning} | GUARDED
    on, seen = staged(tiny_base, hub_task, **said), list[Round]()
    on = as_devices(on)
    adapter, accuracy, secret = over_http(on, tmp_path)
    devices, names = InProcess(on), [client.name for client in on.population]
    schedule, start = schedule_of(on.experiment, len(names)), devices.start()
    last = federate(schedule, on.template(), start, names, devices, seen.append, secret=secret)
    assert sha256(last.adapter) == adapter
    found = [closed.score.accuracy for closed in seen if closed.score]
    assert found == pytest.approx(list(accuracy.values()), abs=1e-12)


WORDS = ("door", "gate", "rain", "cake", "nine", "home")
TAGGING = Task("rooms", ("Place", "Time"), kind="tagging")
MASKED = Task("notes", kind="mlm")


def tagged(number: int) -> Example:
    """A text of three words, the second of which is an entity of either type."""
    words = tuple(WORDS[(number + step) % len(WORDS)] for step in (0, 1, 3))
    tags = ("O", f"B-{TAGGING.labels[number % 2]}", "O")
    return Example(" ".join(words), words=words, tags=tags)


def of_kind(on: Stage, task: Task) -> Stage:
    """Three clients with nine texts each, and three each to be judged by."""
    texts = tuple(tagged(number) for number in range(36))
    if task is MASKED:
        texts = tuple(Example(text.text) for text in texts)
    rows, nothing = np.arange(27).reshape(3, 9), np.empty(0, np.int32)
    population = tuple(
        Virtual(f"client-{number + 1:04d}", mine, nothing, np.arange(3) + 3 * number)
        for number, mine in enumerate(rows)
    )
    dataset = replace(on.dataset, task=task, train=texts[:27], test=texts[27:])
    return as_devices(replace(on, dataset=dataset, population=population))


def write_parts(folder: Path, on: Stage) -> None:
    """The clients' texts as devices read them."""
    for client in on.population:
        (folder / client.name).mkdir(parents=True)
        found = {
            "train": (on.dataset.train, client.labelled),
            "test": (on.dataset.test, client.test),
        }
        for part, (texts, chosen) in found.items():
            mine = [texts[row] for row in chosen]
            if on.dataset.task is MASKED:
                name, lines = (
                    f"{'un' if part == 'train' else ''}labelled.txt",
                    [one.text for one in mine],
                )
            else:
                name = "labelled.jsonl"
                lines = [json.dumps({"tokens": one.words, "tags": one.tags}) for one in mine]
            name = name if part == "train" else f"test{Path(name).suffix}"
            (folder / client.name / name).write_text("".join(line + "\n" for line in lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "adapter"),
    [
        (TAGGING, "lora:2@q,v+head"),
        pytest.param(MASKED, "lora:2@q,v", marks=pytest.mark.slow),
    ],
    ids=["tagging", "mlm"],
)
@pytest.mark.parametrize("kind", first_fast(KINDS[::-1]))
def test_other_kinds_of_task_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str, task: Task, adapter: str
) -> None:
    said = {"engine": kind, "dtype": "auto", "adapter": adapter, "keep": "best"} | GUARDED
    on, seen = of_kind(staged(tiny_base, hub_task, **said), task), list[Round]()
    use_threads(on.experiment.threads)  # sums depend on them
    write_parts(tmp_path / "data", on)
    with closing(Store(tmp_path / "store")) as store, serving(store, config_of(on)) as live:
        take_part(on, live.http.base_url, live.token, tmp_path)
        run = live.service.run(live.run_id)
        assert run.state.is_finished
        assert not run.state.trouble
        table = rows(store, live.run_id)
    names = [client.name for client in on.population]
    with closing(InProcess(on)) as devices:
        known = schedule_of(on.experiment, len(names), task.labels, task.kind), on.template()
        secret = run.run.secret
        last = federate(*known, devices.start(), names, devices, seen.append, secret=secret)
        assert last.adapter != devices.start().adapter
    assert sha256(last.adapter) == kept_of(config_of(on), run.state)[1]
    assert sha256(seen[-1].standing.adapter) == run.state.adapter_sha256
    good = recalled(seen[-1].standing.memory).state.good
    assert good == run.state.good and good and good.score.median_loss is not None
    scores = {closed.round_index: closed.score for closed in seen if closed.score}
    assert list(scores) == [0, 1, 2]
    if task is MASKED:
        losses = {index: mean_loss([(one.loss or 0.0, 1)]) for index, one in scores.items()}
        told = {index: perplexity(loss) for index, loss in losses.items()}
        assert perplexities(table, MASKED) == pytest.approx(told, rel=1e-6)
    else:
        told = {index: scores_of(one.entities[""]).strict for index, one in scores.items()}
        found = {index: one.strict for index, one in entities_by_round(table).items()}
        assert found == pytest.approx(told)


@pytest.mark.parametrize(("task", "is_kept"), [(TAGGING, True), (MASKED, False)])
def test_what_is_masked_anew_is_kept_in_no_cache(
    tiny_base: Base, hub_task: Task, task: Task, is_kept: bool
) -> None:
    adapter = "bias/top1+head" if task is TAGGING else "bias/top1"
    said, spent = {"engine": "onnx", "adapter": adapter, "cache_bytes": 1 << 24}, list[int]()
    on = of_kind(staged(tiny_base, hub_task, **said), task)
    asked = [(on.population[0].name, replace(on.template(), round_index=1))]
    with closing(InProcess(on)) as devices:
        for _ in range(2):
            (answer,) = devices.do(devices.start().adapter, asked)
            spent.append(answer.report.layer_forwards)
    assert (spent[1] < spent[0]) == is_kept


DRAWN = Training(epochs=1, batch=2, lr=0.05, tokens=32, least_samples=9, sample_share=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_a_draw_of_texts_and_the_best_adapter_are_the_same_over_http(
    tiny_base: Base, hub_task: Task, tmp_path: Path, kind: str
) -> None:
    said = {"engine": kind, "dtype": "auto", "training": DRAWN, "rounds": 4, "cohort": 3}
    kept = {"keep": "best", "evaluate_share": 0.5, "seed": 1}
    kept |= {"learning": Learning(optimizer="fedadam", lr=0.1)}
    on, seen = as_devices(staged(tiny_base, hub_task, **said, **kept, **GUARDED)), list[Round]()
    use_threads(on.experiment.threads)  # sums depend on them
    adapter, accuracy, secret = over_http(on, tmp_path)
    names = [client.name for client in on.population]
    schedule = schedule_of(on.experiment, len(names), hub_task.labels)
    with closing(InProcess(on)) as devices:
        known = schedule, on.template()
        first = devices.start()
        last = federate(*known, first, names, devices, seen.append, secret=secret)
        again = federate(*known, seen[2].standing, names, devices, secret=secret)
    assert sha256(last.adapter) == sha256(again.adapter) == adapter
    found = [closed.score for closed in seen if closed.score]
    assert [one.accuracy for one in found] == pytest.approx(list(accuracy.values()), abs=1e-12)
    assert [one.total.asked for one in found] == [6, 6, 6, 6, 12]
    assert {closed.num_examples for closed in seen[1:]} == {24}  # all texts, not those drawn
    best = max(range(5), key=lambda index: (found[index].accuracy, index))
    assert seen[-1].kept == best == 2 and sha256(seen[best].standing.adapter) == adapter
