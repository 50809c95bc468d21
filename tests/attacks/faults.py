"""Ways in which a client data folder breaks, with a canary wherever there is room for one.

break_folder(Path("data"), "swapped columns", Canary("mine"))
"""

import gzip
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.canaries import Canary

HEADER = "text,label,language,id"
GOOD = ("the front door opened", "storm at nine", "dinner with grandma")
LABELS = ("security", "weather", "family")
Make = Callable[[Path, Canary], None]


def good(canary: Canary) -> str:
    """A file of texts that can be used; the canary is one of them, and the id of all."""
    texts = zip((*GOOD, canary.sentence), (*LABELS, "family"), strict=True)
    rows = [f"{text},{label},en,{canary.words[0]}" for text, label in texts]
    return "\n".join([HEADER, *rows, ""])


def write(name: str, content: Callable[[Canary], str | bytes]) -> Make:
    """A fault that is one file's content."""

    def make(folder: Path, canary: Canary) -> None:
        body = content(canary)
        (folder / name).write_bytes(body.encode() if isinstance(body, str) else body)

    return make


def rows(header: str, *lines: str) -> Make:
    """A `labelled.csv` of some lines; `{c}` is the canary, `{w}` a word of it."""

    def content(canary: Canary) -> str:
        whole = "\n".join([header, *lines, ""])
        return whole.replace("{c}", canary.sentence).replace("{w}", canary.words[1])

    return write("labelled.csv", content)


def jsonl(*values: str) -> Make:
    """A `labelled.jsonl` of some lines; `C` is the canary as a JSON string."""
    return write(
        "labelled.jsonl",
        lambda canary: "".join(f"{v}\n" for v in values).replace("C", json.dumps(canary.sentence)),
    )


def parquet(is_damaged: bool) -> Make:
    """A `labelled.parquet` whose columns are swapped, or that is cut short."""

    def make(folder: Path, canary: Canary) -> None:
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table({"label": [canary.sentence], "text": ["family"]})
        path = folder / "labelled.parquet"
        parquet.write_table(table, path)
        if is_damaged:
            path.write_bytes(path.read_bytes()[:-40])

    return make


def folder_in_place(folder: Path, canary: Canary) -> None:
    (folder / "labelled.csv").mkdir()
    (folder / "labelled.csv" / f"{canary.words[2]}.txt").write_text(canary.sentence)


def no_permission(folder: Path, canary: Canary) -> None:
    (folder / "labelled.csv").write_text(good(canary))
    (folder / "labelled.csv").chmod(0)


def disk_error(folder: Path, _: Canary) -> None:
    """A file that is there and whose every byte is an input/output error, for root too."""
    (folder / "labelled.csv").symlink_to("/proc/self/mem")


def dangling_link(folder: Path, canary: Canary) -> None:
    (folder / "labelled.csv").symlink_to(folder / f"{canary.words[2]}.csv")


def two_files(folder: Path, canary: Canary) -> None:
    for ending in ("csv", "tsv"):
        (folder / f"labelled.{ending}").write_text(good(canary))


def broken_test_file(folder: Path, canary: Canary) -> None:
    (folder / "labelled.csv").write_text(good(canary))
    (folder / "test.csv").write_text(f"text,label\nfamily,{canary.sentence}\n")


def broken_unlabelled_file(folder: Path, canary: Canary) -> None:
    (folder / "labelled.csv").write_text(good(canary))
    (folder / "unlabelled.csv").write_text(f"{canary.sentence},{canary.words[1]}\nrain,today\n")


def task_beside(content: str) -> Make:
    """Good texts beside a `task.toml`, in which `C` is the canary as a TOML string."""

    def make(folder: Path, canary: Canary) -> None:
        (folder / "labelled.csv").write_text(good(canary))
        text = content.replace("C", json.dumps(canary.sentence, ensure_ascii=False))
        (folder / "task.toml").write_text(text)

    return make


FAULTS: dict[str, Make] = {
    "swapped columns": rows("label,text", "{c},family", "the front door {w},weather"),
    "unknown label": rows(HEADER, "rain today,{w},en,1", "storm at nine,{c},en,2"),
    "no header": rows("{c},family", "rain {w},weather"),
    "a column of another name": rows("text,{w}", "{c},family"),
    "other delimiter": rows("text;label", "{c};family"),
    "a bad line among good ones": rows(HEADER, "{c},family,en,{w}", "rain,{w},en,1"),
    "an unknown language and id": rows(HEADER, "{c},family,{c},{w}", "rain,weather,{w},{c}"),
    "NUL byte": rows(HEADER, "{c}\0,family,en,{w}"),
    "NUL byte in the label": rows(HEADER, "rain,{w}\0,en,1"),
    "not UTF-8": write("labelled.csv", lambda c: b"text,label\n\xff\xfe%b,family\n" % bytes_of(c)),
    "UTF-16": write("labelled.csv", lambda c: good(c).encode("utf-16")),
    "unclosed quote": rows(HEADER, '"{c},family,en,{w}', "rain {w},weather,en,1"),
    "an array in JSONL": jsonl("[C, C]"),
    "broken JSON": jsonl('{"text": C, "label": C'),
    "a label that is an object": jsonl('{"text": C, "label": {C: C}}'),
    "a text that is an object": jsonl('{"text": {C: [C]}, "label": "rain"}'),
    "half a surrogate pair": jsonl('{"text": "\\ud800", "label": C}', '{"text": C, "label": "x"}'),
    "truncated gzip": write("labelled.csv.gz", lambda c: gzip.compress(good(c).encode())[:-9]),
    "not gzip": write("labelled.csv.gz", good),
    "parquet with swapped columns": parquet(is_damaged=False),
    "damaged parquet": parquet(is_damaged=True),
    "empty file": write("labelled.csv", lambda _: b""),
    "header alone": rows(HEADER),
    "folder in place of the file": folder_in_place,
    "no permission": no_permission,
    "a disk that gives errors": disk_error,
    "a link to nowhere": dangling_link,
    "two files of one kind": two_files,
    "texts of spaces": rows(HEADER, "   ,{w},en,1", '" ",{c},{w},2'),
    "a huge text": rows(HEADER, "{c} " * (1 << 14) + ",{w},en,1"),
    "a field over the limit": rows(HEADER, "{c} " * (1 << 18) + ",family,en,1"),
    "a test file with swapped columns": broken_test_file,
    "an unlabelled file without header": broken_unlabelled_file,
    "a broken task beside the texts": task_beside("labels = [C, C"),
    "another task beside the texts": task_beside("labels = [C, 'x']\npatterns = [C, '{text}']"),
    "no files": lambda folder, canary: (folder / canary.words[2]).mkdir(),
    "no folder": lambda folder, _: folder.rmdir(),
}


ANSWERED = '{"prompt": "dim the light", "completion": "done"}'
CHAT_FAULTS: dict[str, Make] = {
    "a conversation that the template refuses": jsonl(
        '{"prompt": C, "completion": "refuse"}', ANSWERED
    ),
    "conversations that the template refuses": jsonl('{"prompt": C, "completion": "refuse"}'),
    "no answer": jsonl('{"messages": [{"role": "user", "content": C}]}', ANSWERED),
    "an empty answer": jsonl('{"prompt": C, "completion": " "}', ANSWERED),
    "an unknown role": jsonl('{"messages": [{"role": C, "content": C}]}', ANSWERED),
    "messages that are an object": jsonl('{"messages": {C: C}}'),
    "a message that is a string": jsonl('{"messages": [C, C]}', ANSWERED),
    "a message whose content is a list": jsonl('{"messages": [{"role": "user", "content": [C]}]}'),
    "calls of tools": jsonl(
        '{"messages": [{"role": "user", "content": C, "tool_calls": [C]}]}', ANSWERED
    ),
    "tools beside messages": jsonl('{"tools": [C], "messages": [{"role": "user", "content": C}]}'),
    "messages beside a prompt": jsonl(
        '{"prompt": C, "messages": [{"role": "user", "content": C}]}', ANSWERED
    ),
    "columns of other names": jsonl("{C: C}", '{"question": C, "answer": C}'),
    "control words": write(
        "labelled.jsonl",
        lambda c: json.dumps({"prompt": f"<|im_end|>{c.sentence}", "completion": c.sentence}),
    ),
    "half a surrogate pair in an answer": jsonl('{"prompt": C, "completion": "\\ud800"}', ANSWERED),
    "a cut line": jsonl(ANSWERED, '{"prompt": C, "completion": C'),
    "answers behind the limit": write(
        "labelled.jsonl",
        lambda c: json.dumps({"prompt": c.sentence * 9, "completion": c.sentence}) + "\n",
    ),
}

TAGGED = '{"tokens": ["storm", "at", "nine"], "tags": ["O", "O", "B-Time"]}'
TAGGING_FAULTS: dict[str, Make] = {
    "tags of another type": jsonl('{"tokens": [C, "rain"], "tags": [C, "O"]}', TAGGED),
    "fewer tags than words": jsonl('{"tokens": [C, C], "tags": ["O"], "language": C}', TAGGED),
    "words that are no list": jsonl('{"tokens": C, "tags": {C: C}}', TAGGED),
    "no column of tags": write("labelled.conll", lambda c: "\n\n".join([c.sentence, *c.words])),
    "a word without a tag": write("labelled.conll", lambda c: f"rain\tO\n{c.words[0]}\n\n"),
}
MULTILABEL_FAULTS: dict[str, Make] = {
    "one unknown label of two": jsonl('{"text": C, "label": ["family", C]}'),
    "labels that are an object": jsonl('{"text": C, "labels": {C: C}}'),
    "a column that is no truth value": rows("text,security,weather,family", "{c},1,{w},0"),
    "a column of an unknown label": rows("text,security,{w}", "{c},1,0"),
}
MASKED_FAULTS: dict[str, Make] = {
    "lines that are not UTF-8": write("unlabelled.txt", lambda c: b"\xff\xfe%b\n" % bytes_of(c)),
    "a mask among words": write("unlabelled.txt", lambda c: f"[MASK] {c.sentence} [MASK]\n[PAD]\n"),
    "files within a folder": lambda folder, canary: paragraphs(folder, canary),
}
KIND_FAULTS = {
    "chat": CHAT_FAULTS,
    "tagging": TAGGING_FAULTS,
    "multilabel": MULTILABEL_FAULTS,
    "mlm": MASKED_FAULTS,
}


def paragraphs(folder: Path, canary: Canary) -> None:
    """A folder of texts whose files' names are private, one of them a folder again."""
    (folder / "unlabelled" / canary.words[3]).mkdir(parents=True)
    (folder / "unlabelled" / f"{canary.words[2]}.txt").write_text(f"{canary.sentence}\n" * 2)


def bytes_of(canary: Canary) -> bytes:
    return canary.sentence.encode()


def break_folder(folder: Path, fault: str, canary: Canary) -> None:
    """Put a fault in place of whatever a data folder holds, as if it had been so for a while."""
    empty(folder)
    every = FAULTS.copy()
    for faults in KIND_FAULTS.values():
        every |= faults
    every[fault](folder, canary)
    settle(folder)


def fill(folder: Path, canary: Canary) -> None:
    """Texts of all three kinds that can be used."""
    empty(folder)
    for part in ("labelled", "test"):
        (folder / f"{part}.csv").write_text(good(canary))
    lines = [
        "text,language",
        f"{canary.sentence} today,en",
        "rain today,en",
        "on your way home,en",
        "",
    ]
    (folder / "unlabelled.csv").write_text("\n".join(lines))
    settle(folder)


def fill_conversations(folder: Path, canary: Canary) -> None:
    """Conversations that can be used, in both forms; the canary asks and answers."""
    empty(folder)
    said = [("user", canary.sentence), ("assistant", canary.sentence)]
    rows = [
        {"prompt": "dim the light", "completion": canary.sentence, "id": canary.words[0]},
        {"prompt": canary.sentence, "completion": "done", canary.words[1]: canary.words[2]},
        {"messages": [{"role": role, "content": words} for role, words in said]},
    ]
    for part in ("labelled", "test"):
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settle(folder)


def fill_plain(folder: Path, canary: Canary) -> None:
    """Texts without labels, a line each."""
    empty(folder)
    for part in ("unlabelled", "test"):
        (folder / f"{part}.txt").write_text("\n".join([*GOOD, canary.sentence, ""]))
    settle(folder)


def fill_tagged(folder: Path, canary: Canary) -> None:
    """Tagged words; the canary is an entity, an id, and in one text that is left out a type."""
    empty(folder)
    words = [*canary.words, canary.other]
    rows = [
        {"tokens": words, "tags": ["B-Place", *["O"] * (len(words) - 1)], "id": canary.words[0]},
        {"tokens": ["storm", "at", "nine"], "tags": ["O", "O", "B-Time"]},
        {"tokens": [canary.words[1], "rain"], "tags": [f"B-{canary.words[2]}", "O"]},
    ]
    for part in ("labelled", "test"):
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settle(folder)


def fill_multilabel(folder: Path, canary: Canary) -> None:
    """Texts of several labels, and some without any; the canary is one of them, and a label."""
    empty(folder)
    rows = [
        {"text": canary.sentence, "label": ["family", "weather"], "id": canary.words[0]},
        {"text": GOOD[0], "label": ["security"]},
        {"text": f"{canary.words[3]} storm", "labels": []},
        {"text": GOOD[1], "label": ["weather", canary.words[1]]},
    ]
    for part in ("labelled", "test"):
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "unlabelled.csv").write_text(f"text\n{canary.sentence} today\nrain today\n")
    settle(folder)


FILLS: dict[str, Make] = {  # by kind of task
    "chat": fill_conversations,
    "completion": fill_plain,
    "tagging": fill_tagged,
    "mlm": fill_plain,
    "multilabel": fill_multilabel,
}


def empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def settle(folder: Path) -> None:
    """Make files look old: those just written may be left for later."""
    a_minute_ago = time.time() - 60
    for path in (folder, *folder.glob("*")):
        if path.exists() and not path.is_symlink():
            os.utime(path, (a_minute_ago, a_minute_ago))


def file_faults() -> list[str]:
    """Faults that can be made here: `no permission` is none to root, and Parquet needs pyarrow."""
    left_out = {"no permission"} if os.geteuid() == 0 else set()
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        left_out |= {name for name in FAULTS if "parquet" in name}
    return [name for name in FAULTS if name not in left_out]
