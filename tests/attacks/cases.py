"""The cases in which no text may leave: a story each, and the run that its device joins."""

from dataclasses import dataclass

from tests.attacks.faults import FAULTS, KIND_FAULTS
from tests.attacks.stories import (
    FINISHED,
    ROOM_BLOCKS,
    Story,
    changed_later,
    crashed,
    damaged_tokenizer,
    faulty,
    fetching,
    in_turn,
    left_in_the_outbox,
    linked_books_of_labels,
    long_books_of_labels,
    one_file,
    other_template,
    other_tokenizer,
    other_words,
    overwritten,
    personal,
    processes_looked_at,
    revoked,
    started,
    started_again,
    swapped,
    unlabelled_alone,
    without_texts,
    without_weights,
)

LABELLING = ("--labelling", "--confidence", "0.5", "--keep-last", "1.0", "--rounds", "3")
MANY_ROUNDS = ("--labelling", "--confidence", "0.5", "--rounds", "20")
TORCH, SMALL = ("--engine", "torch"), ("--memory-budget", "1M")
NO_PLAN, NO_ROOM = "is below the smallest plan", "File too large"
FOUND, NOT_FINITE = " pseudo-labels", "the loss is nan"
WIDE = ("--base", "wide")
HIGH_LR = ("--adapter", "lora:1@q,k,v,o,up,down", "--lr", "99.9", "--epochs", "20")
DECODER = ("--base", "decoder", "--tokens", "256", "--task")
CHAT, COMPLETION = (*DECODER, "chat"), (*DECODER, "completion")
UNSAFE = "{{ C.__class__.__mro__ }}"
TAGGING = ("--task", "tagging", "--adapter", "lora:2+head")
MULTILABEL, MASKED = ("--task", "multilabel"), ("--task", "mlm")
KINDS = {"chat": CHAT, "tagging": TAGGING, "multilabel": MULTILABEL, "mlm": MASKED}
CODED = ("--rounds", "3", "--toml", '[updates]\nup = "int8"\ndown = "int8"\n')
SPARSE = ("--rounds", "3", "--toml", '[updates]\nup = "topk:0.1"\ndown = "int4"\n')
BUFFERED = ("--rounds", "4", "--toml", "[asynchronous]\nbuffer = 1\n")
SCAFFOLD = ("--scaffold", "--optimizer", "sgd", "--lr", "0.1", "--rounds", "3")
BANK = "lora:4@q,k,v,o,up,down"
LABEL_WORDS = (*DECODER, "label words", *LABELLING)


@dataclass(frozen=True)
class Case:
    """One device, what happens to it, and the run it joins.

    Attributes:
        name: What goes wrong.
        story: Starts the client and sees it through.
        run: Options of `coordinator create`.
        is_fast: Whether it runs without `-m slow`.
    """

    name: str
    story: Story
    run: tuple[str, ...] = ()
    is_fast: bool = False


CASES = [
    Case("ten faults in turn", in_turn(10), MANY_ROUNDS),
    Case("every fault in turn", in_turn(len(FAULTS)), MANY_ROUNDS),
    Case("swapped columns, at work", faulty("swapped columns", ("asked", 2)), is_fast=True),
    Case("unknown label, once joined", faulty("unknown label", ("joined", 1))),
    Case("a budget too small", started(NO_PLAN, *SMALL, most_reports=2)),
    Case("a revoked label", started_again(revoked), LABELLING),
    Case(
        "no room for an adapter",
        started(NO_ROOM, limit_blocks=ROOM_BLOCKS, most_reports=2),
        (*WIDE, "--adapter", "lora:32"),
    ),
    Case("a huge learning rate", started(FINISHED, "--limits", "lr=99.9"), HIGH_LR),
    Case("a learning rate over the limit", started("this device does 1 at most"), HIGH_LR),
    Case(
        "training that diverges",
        started(NOT_FINITE, *TORCH, is_tested=False),
        ("--base", "huge"),
    ),
    Case("a loss that is not finite", started(NOT_FINITE, *TORCH), ("--base", "huge")),
    Case("labelling", started(FOUND), LABELLING, is_fast=True),
    Case("labelling by torch", started(FOUND, *TORCH), LABELLING),
    Case("labelling with early exit", started(FOUND), (*LABELLING, "--adapter", "lora:2/top1")),
    Case("words the base does not know", changed_later(other_words), LABELLING),
    Case("a label word the base does not know", changed_later(other_tokenizer)),
    Case("a damaged tokenizer", changed_later(damaged_tokenizer)),
    Case("a budget too small for torch", started(NO_PLAN, *TORCH, *SMALL, most_reports=2)),
    Case("one file as --data", one_file),
    Case("swapped columns at the second start", started_again(swapped, "are the columns swapped?")),
    Case("unlabelled texts alone", started_again(unlabelled_alone, "unlabelled texts alone")),
    Case("no room for the identity", started(NO_ROOM, limit_blocks=0)),
    Case(
        "little room", started(NO_ROOM, limit_blocks=ROOM_BLOCKS), (*WIDE, "--adapter", "lora:64")
    ),
    Case(
        "no room for labels",
        started_again(long_books_of_labels, NO_ROOM, limit_blocks=ROOM_BLOCKS),
        LABELLING,
    ),
    Case(
        "a link in place of labels",
        started_again(linked_books_of_labels, "symbolic link"),
        LABELLING,
    ),
    Case("a base that is gone", changed_later(without_weights)),
    Case("texts that are gone", changed_later(without_texts)),
    Case(
        "a damaged activation cache",
        started_again(overwritten("activations/**/*")),
        ("--adapter", "lora:2/top1", "--rounds", "3"),
    ),
    Case("a damaged adapter", started_again(overwritten("adapters/*"))),
    Case("a damaged identity", started_again(overwritten("device.json"), "is damaged")),
    Case(
        "a damaged book of labels",
        started_again(overwritten("labels-*"), "is damaged and put aside"),
        LABELLING,
    ),
    Case("an old report in the outbox", started_again(left_in_the_outbox)),
    Case("chat", started(FINISHED), CHAT, is_fast=True),
    Case("chat by torch", started(FINISHED, *TORCH), CHAT),
    Case("chat with a budget too small", started(NO_PLAN, *SMALL, most_reports=2), CHAT),
    Case("chat without a template", changed_later(other_template("")), CHAT),
    Case("a broken template", changed_later(other_template("{% if C %}{{ C")), CHAT),
    Case("a template that quotes", changed_later(other_template("{{ raise_exception(C) }}")), CHAT),
    Case("a template that calls out", changed_later(other_template(UNSAFE)), CHAT),
    Case("a template that answers nothing", changed_later(other_template("{{ C }}")), CHAT),
    Case("chat with a damaged tokenizer", changed_later(damaged_tokenizer), CHAT),
    Case("chat whose adapter is damaged", started_again(overwritten("adapters/*")), CHAT),
    Case("completion", started(FINISHED), COMPLETION),
    Case("completion by torch", started(FINISHED, *TORCH), COMPLETION),
    Case("label words of a decoder", started(FOUND), LABEL_WORDS, is_fast=True),
    Case("label words of a decoder by torch", started(FOUND, *TORCH), LABEL_WORDS),
    Case("tagging", started(FINISHED), TAGGING, is_fast=True),
    Case("tagging by torch", started(FINISHED, *TORCH), TAGGING),
    Case("tagging with coded updates", started(FINISHED), (*TAGGING, *CODED)),
    Case("tagging whose adapter is damaged", started_again(overwritten("adapters/*")), TAGGING),
    Case("masked words", started(FINISHED), MASKED),
    Case("masked words by torch", started(FINISHED, *TORCH), MASKED),
    Case("masked words with a damaged tokenizer", changed_later(damaged_tokenizer), MASKED),
    Case("several labels", started(FINISHED), MULTILABEL),
    Case("several labels by torch", started(FINISHED, *TORCH), MULTILABEL),
    Case("several labels, found", started(FOUND), (*MULTILABEL, *LABELLING)),
    Case("coded updates", started(FINISHED), CODED),
    Case("coded updates, started again", started_again(overwritten("adapters/*")), CODED),
    Case("sparse updates", started(FINISHED), SPARSE),
    Case("scaffold", started(FINISHED), SCAFFOLD),
    Case("scaffold by torch", started(FINISHED, *TORCH), SCAFFOLD),
    Case("scaffold whose state is damaged", started_again(overwritten("updates/*/*")), SCAFFOLD),
    Case("rounds that wait for nobody", started(FINISHED), BUFFERED),
    Case("an adapter of its own", personal("interpolated")),
    Case("an adapter of its own by torch", personal("interpolated", *TORCH)),
    Case("its own by a generator", personal("fedp2eft"), ("--adapter", f"{BANK}+generator")),
    Case("its own by learned rates", personal("fedl2p"), ("--adapter", f"{BANK}+rates")),
    Case("a base that is fetched", fetching(), ("--base", "pack")),
    Case("a base that is fetched from a mirror", fetching("mirror"), ("--base", "pack")),
    Case("a crash", crashed(), ("--epochs", "100")),
    Case("a crash by torch", crashed(*TORCH), ("--epochs", "100")),
    Case("processes that are looked at", processes_looked_at),
    *(
        Case(f"{fault}, of {kind}", faulty(fault), KINDS[kind])
        for kind, faults in KIND_FAULTS.items()
        for fault in faults
    ),
    *(
        Case(f"{fault}, at work of chat", faulty(fault, ("asked", 2)), CHAT)
        for fault in ("conversations that the template refuses", "an unknown role", "a cut line")
    ),
    *(Case(f"{fault}, from the start", faulty(fault)) for fault in FAULTS),
    *(Case(f"{fault}, at work", faulty(fault, ("asked", 2))) for fault in FAULTS),
]
CASES = list({case.name: case for case in reversed(CASES)}.values())[::-1]  # fast ones win
