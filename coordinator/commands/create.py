"""`smidgen coordinator create`: a new run, from a run file and flags."""

import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from coordinator.api.create import NewRun, create_run
from coordinator.api.ready import PORT
from coordinator.api.starting import join_line
from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewStoreOption, answer, at_store, tags_of
from coordinator.storage.place import StorePlace
from coordinator.storage.runs import config_of, find_run

TASK = "A task.toml, or the name of a ready-made task (`smidgen client tasks` lists them)."
NAME = "Name of the run, 1 to 64 characters, another one for each run; by default the task's."
BASE = "Frozen base: a folder, a hub name, or `embedded`, the default."
PRESET = (
    "Values for what neither the run file nor an option says, by name: silos, few large holders of "
    "texts."
)
ADAPTER = (
    "What is trained: lora:8, lora:8@q,v, prompt:8, bias, head, or +head; by default lora:8@q,v, "
    "of tagging lora:8@q,v+head."
)
PROMPT_INIT = "With prompt:N, the text it starts from; by default random words."
ROUNDS = "Rounds of training until the run is finished, 1 or more; by default 10."
FRACTION = "Share of the devices asked to train in a round, above 0 to 1; by default 1, all."
MIN_CLIENTS = "Devices to wait for before the first round, 1 or more; by default 2."
EVALUATE_COHORT = "Devices asked to evaluate an adapter; by default 0, all that are there."
EPOCHS = "Times a device goes through its texts in a round, 1 or more; by default 4."
BATCH = "Texts in one optimizer step, 1 or more; by default 8. More need more memory."
LR = "Learning rate of the optimizer on the devices, above 0; by default 0.005."
OPTIMIZER = "What devices train with: adamw, the default, or sgd (which takes a larger --lr)."
MOMENTUM = "Momentum of sgd, 0 to below 1; by default 0."
ADJUSTED = "Let the loss know each device's own mix of labels: what it lacks is not unlearned."
SCAFFOLD = "Let devices hold control variates (SCAFFOLD): with sgd alone, without the other two."
PROXIMAL = (
    "mu of FedProx: pulls devices back to the adapter they received; by default 0, not at all."
)
TOKENS = "Longest input in tokens, 8 or more; longer texts are cut. By default 128."
DEADLINE = "Seconds after which a step goes on without late devices; by default 600."
SEED = "Root seed, 0 or more; equal seeds give equal runs. By default 0."
LABELLING = "Let devices label texts of their own and train on them; any option below says so too."
INFER_EVERY = "Label before every Nth round, 1 or more; by default 1, before each."
INFER_CLIENTS = "Devices asked to label each time; by default 0, all that are there."
KEEP_FIRST = "Share of its texts a device may label before round 1, above 0 to 1; by default 0.1."
KEEP_LAST = "The same before the last round, linear in between; by default 0.5."
CONFIDENCE = "How sure a device must be of a label to use it, 0.5 to below 1; by default 0.9."
TAG = "Tag that a device must have to be asked, such as site=kitchen; may be given again."
LEAST_MEMORY = "Memory that a device must have at least, such as 2G; by default any."
FROM = (
    "Adapter to start from instead of a new one: a PEFT folder, or RUN@N of this store, a run's "
    "adapter after its round N (or best, or last)."
)
PLUGINS = "Folder as `serve --plugins` has it: its names may stand in the run file."
SHARE = "Share of the devices that fit otherwise, above 0 to 1; by default 1, all."


@at_store
def create(
    store: NewStoreOption,
    file: Annotated[
        Path | None, typer.Argument(help="Run file (TOML); not needed with --task.")
    ] = None,
    task: Annotated[Path | None, typer.Option(help=TASK)] = None,
    name: Annotated[str | None, typer.Option(help=NAME)] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help=PRESET)] = None,
    base: Annotated[str | None, typer.Option(help=BASE)] = None,
    adapter: Annotated[str | None, typer.Option(help=ADAPTER)] = None,
    prompt_init: Annotated[str | None, typer.Option(help=PROMPT_INIT)] = None,
    rounds: Annotated[int | None, typer.Option(help=ROUNDS)] = None,
    fraction: Annotated[float | None, typer.Option(help=FRACTION)] = None,
    min_clients: Annotated[int | None, typer.Option(help=MIN_CLIENTS)] = None,
    evaluate_cohort: Annotated[int | None, typer.Option(help=EVALUATE_COHORT)] = None,
    epochs: Annotated[int | None, typer.Option(help=EPOCHS)] = None,
    batch: Annotated[int | None, typer.Option(help=BATCH)] = None,
    lr: Annotated[float | None, typer.Option(help=LR)] = None,
    tokens: Annotated[int | None, typer.Option(help=TOKENS)] = None,
    optimizer: Annotated[str | None, typer.Option(help=OPTIMIZER)] = None,
    momentum: Annotated[float | None, typer.Option(help=MOMENTUM)] = None,
    proximal: Annotated[float | None, typer.Option(help=PROXIMAL)] = None,
    scaffold: Annotated[bool, typer.Option("--scaffold", help=SCAFFOLD)] = False,
    adjusted: Annotated[bool, typer.Option("--adjusted", help=ADJUSTED)] = False,
    deadline: Annotated[float | None, typer.Option(help=DEADLINE)] = None,
    seed: Annotated[int | None, typer.Option(help=SEED)] = None,
    labelling: Annotated[bool, typer.Option("--labelling", help=LABELLING)] = False,
    infer_every: Annotated[int | None, typer.Option(help=INFER_EVERY)] = None,
    infer_clients: Annotated[int | None, typer.Option(help=INFER_CLIENTS)] = None,
    keep_first: Annotated[float | None, typer.Option(help=KEEP_FIRST)] = None,
    keep_last: Annotated[float | None, typer.Option(help=KEEP_LAST)] = None,
    confidence: Annotated[float | None, typer.Option(help=CONFIDENCE)] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=TAG)] = None,
    least_memory: Annotated[str | None, typer.Option(help=LEAST_MEMORY)] = None,
    share: Annotated[float | None, typer.Option(help=SHARE)] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="ADAPTER", help=FROM)] = None,
    plugins: Annotated[Path | None, typer.Option(metavar="FOLDER", help=PLUGINS)] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a run; print its id and an enrolment token, which is not shown again.

    Devices that have enrolled before need no token: they are asked if the run wants them.

    Options go before the run file; what neither says has the default named here.
    """
    created = create_run(
        store,
        file,
        task=task,
        name=name,
        preset=preset,
        base=base,
        adapter=adapter,
        prompt_init=prompt_init,
        rounds=rounds,
        fraction=fraction,
        min_clients=min_clients,
        evaluate_cohort=evaluate_cohort,
        epochs=epochs,
        batch=batch,
        lr=lr,
        tokens=tokens,
        optimizer=optimizer,
        momentum=momentum,
        proximal=proximal,
        scaffold=scaffold,
        adjusted=adjusted,
        deadline=deadline,
        seed=seed,
        labelling=labelling,
        infer_every=infer_every,
        infer_clients=infer_clients,
        keep_first=keep_first,
        keep_last=keep_last,
        confidence=confidence,
        tag=tags_of("--tag", tag) if tag else None,
        least_memory=least_memory,
        share=share,
        start=start,
        plugins=plugins,
    )
    announce(created, as_json)
    if not as_json:
        line = ["smidgen", "coordinator", "serve", *store.options]
        line += [] if plugins is None else ["--plugins", str(plugins)]
        print(f"next, here  {shlex.join(line)}")
        print("on each device:")
        print(line_of(store, created))


def line_of(store: StorePlace, created: NewRun) -> str:
    from coordinator.trust.folder import ca_of, folder_of, is_there, read

    with closing(open_store(store)) as opened:
        base = config_of(find_run(opened, created.run_id)).base
    if not is_there(store.folder):
        return join_line(created.token, f"http://127.0.0.1:{PORT}", None, base)
    trust = read(folder_of(store.folder))
    return join_line(created.token, trust.address.url, ca_of(trust), base)


def announce(created: NewRun, as_json: bool) -> None:
    text = f"run {created.run_id} ({created.name})\nenrolment token {created.token}"
    plain = {"run_id": created.run_id, "name": created.name, "token": created.token}
    answer(text, plain, as_json)
