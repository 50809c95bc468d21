"""Conversations and plain texts for causal language models: how they are read, asked and cut."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smidgen
from smidgen.edge_client.adapters.initial import first_adapter, initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.encoder import Encoder, cut_of, usable
from smidgen.edge_client.tasks.kind import every_files
from smidgen.edge_client.tasks.task import Task, read_task, task_toml
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import ClientData, Example, read_folder, read_texts
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import TokenizerError, Tokens
from smidgen.edge_client.wire.tensors import encode_adapter
from tests.edge_client.tasks.tiny_decoder import SPECIALS, write_tiny_decoder

pytest.importorskip("jinja2")
CHAT, TEXTS = Task("home", kind="chat"), Task("notes", kind="completion")
SECRET = "my grandmother's diagnosis"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_decoder(tmp_path_factory.mktemp("decoder") / "base")


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Tokens:
    return Tokens(folder)


def said(*contents: str, last: str = "assistant") -> list[dict[str, str]]:
    """A user and an assistant by turns."""
    roles = ["user", "assistant"] if last == "assistant" else ["assistant", "user"]
    return [
        {"role": roles[place % 2], "content": content} for place, content in enumerate(contents)
    ]


def example(*contents: str) -> Example:
    return Example(json.dumps(said(*contents)), line=3, file="labelled.jsonl")


def read(
    folder: Path, *rows: Any, name: str = "labelled.jsonl"
) -> tuple[list[Example], Accounting]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    accounting = Accounting()
    return [one for _, one, _ in read_texts(folder / name, CHAT, True, accounting)], accounting


def text_of(tokens: Tokens, ids: list[int]) -> str:
    return str(tokens._tokenizer.decode(ids, skip_special_tokens=False))


# Reading


def test_messages_and_prompts_with_completions_are_the_same_conversation(tmp_path: Path) -> None:
    rows = {"messages": said("dim it", "done"), "id": 1}, {"prompt": "dim it", "completion": "done"}
    found, _ = read(tmp_path, *rows)
    assert found[0] == found[1] and json.loads(found[0].text) == said("dim it", "done")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_has_the_two_columns(tmp_path: Path, delimiter: str) -> None:
    head = delimiter.join(("prompt", "completion", "language"))
    (tmp_path / "labelled.csv").write_text(f"{head}\n{delimiter.join(('hi', 'yes', 'en'))}\n")
    (found,) = read_folder(tmp_path, CHAT).labelled
    assert json.loads(found.text) == said("hi", "yes") and found.language == "en"


def test_columns_of_other_names_are_told(tmp_path: Path) -> None:
    from smidgen.edge_client.formats.source import Dialect

    (tmp_path / "labelled.csv").write_text("question,answer\nhi,yes\n")
    (found,) = read_folder(tmp_path, CHAT, Dialect("question,answer")).labelled
    assert json.loads(found.text) == said("hi", "yes")


def test_messages_lie_in_parquet_too(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = pyarrow.Table.from_pylist([{"id": "a", "messages": said("hi", "yes")}])
    pytest.importorskip("pyarrow.parquet").write_table(rows, tmp_path / "labelled.parquet")
    (found,) = read_folder(tmp_path, CHAT).labelled
    assert json.loads(found.text) == said("hi", "yes")


WRONG: list[tuple[Any, str, str]] = [
    ({"messages": []}, "unanswered", "`messages` is empty"),
    ({"messages": said(SECRET)}, "unanswered", "no message of the assistant"),
    ({"messages": said(SECRET, "")}, "unanswered", "message 2: its content is empty"),
    ({"messages": said(" ", "a")}, "not text", "message 1: its content is empty"),
    ({"messages": SECRET}, "not text", "`messages` is a string; a list of messages is expected"),
    ({"messages": [SECRET]}, "not text", "message 1: a string; an object with role and content"),
    ({"messages": [{"role": SECRET, "content": "a"}]}, "not text", "its role is none of system"),
    ({"messages": [{"role": "user", "content": 3}]}, "not text", "`content` is a whole number"),
    ({"messages": [{"role": "user"}]}, "not text", "`content` is null"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}]},
        "not text",
        "`content` is a list",
    ),
    (
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"x": SECRET}]}]},
        "not text",
        "`tool_calls` are not read here",
    ),
    ({"messages": said("a", "b"), "tools": [{"x": SECRET}]}, "not text", "`tools` are not read"),
    ({"messages": said("a", "\ud800")}, "unreadable", "surrogate"),
    ({"messages": said("a", "\0")}, "unreadable", "NUL"),
    (
        {"messages": said("a", "b"), "prompt": SECRET, "completion": SECRET},
        "ambiguous",
        "in one row",
    ),
    ({"prompt": SECRET, "completion": ""}, "unanswered", "message 2: its content is empty"),
    ({"prompt": "", "completion": SECRET}, "not text", "message 1: its content is empty"),
    ({"prompt": SECRET, "completion": 7}, "not text", "`completion` is a whole number"),
    ({"prompt": SECRET}, "columns", "found prompt and 0 of other names"),
    ({"text": SECRET, "label": "x"}, "columns", "found text, label and 0 of other names"),
    ({SECRET: "a", "b": "c"}, "columns", "found 2 of other names; say by --text-column"),
    ({"tokens": [SECRET], "tags": ["O"]}, "columns", "or columns prompt,completion in each row"),
]


@pytest.mark.parametrize(("row", "reason", "words"), WRONG, ids=[one[2] for one in WRONG])
def test_a_row_that_is_no_conversation_is_left_out_without_a_word_of_it(
    tmp_path: Path, row: Any, reason: str, words: str
) -> None:
    found, accounting = read(tmp_path, {"messages": said("hi", "yes")}, row)
    assert len(found) == 1 and accounting.reasons == {reason: 1}
    assert words in str(accounting) and SECRET not in str(accounting)


def test_a_folder_of_conversations_is_found_without_a_task(tmp_path: Path) -> None:
    read(tmp_path, {"messages": said("hi", "yes")})
    check_folder(tmp_path, every_files())
    (tmp_path / "unlabelled.txt").write_text("a line for other tasks\n")
    data = read_folder(tmp_path, CHAT)
    assert len(data.labelled) == 1 and not data.unlabelled


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": said(SECRET)}, "no message of the assistant"),
        ({"messages": [{"role": SECRET, "content": "a"}]}, "its role is none of system"),
        ({"question": SECRET, "answer": SECRET}, "columns text,label are expected"),
        ({"question": SECRET, "answer": SECRET}, "for a task of kind chat, a list `messages` or "),
    ],
)
def test_a_folder_without_a_good_conversation_says_what_one_needs_without_a_task(
    tmp_path: Path, row: Any, words: str
) -> None:
    (tmp_path / "labelled.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=words) as refused:
        check_folder(tmp_path, every_files())
    assert SECRET not in str(refused.value)


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put a labelled\.jsonl there with `messages`"):
        read_folder(tmp_path, CHAT)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_task_goes_through_its_file_and_has_neither_labels_nor_masks(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "task.toml").write_text(task_toml(Task("t", kind=kind)))
    assert read_task(tmp_path / "task.toml") == Task("t", kind=kind)
    for more, words in (
        ('labels = ["a", "b"]', "leave `labels` out"),
        ("masking = { share = 0.2 }", 'masking is for kind = "mlm"'),
        ('patterns = ["{text} [MASK]"]', "leave `patterns` out"),
    ):
        (tmp_path / "task.toml").write_text(f'name = "t"\nkind = "{kind}"\n{more}\n')
        with pytest.raises(TaskError, match=words):
            read_task(tmp_path / "task.toml")


# Asking

CONTENT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: text.strip() and "\0" not in text
)
CONTENTS = st.lists(st.one_of(CONTENT, st.sampled_from(SPECIALS)), min_size=2, max_size=6).map(
    lambda found: found[: len(found) // 2 * 2]
)


@given(CONTENTS, st.integers(8, 200))
def test_answers_are_asked_for_and_nothing_else(
    tokens: Tokens, contents: list[str], limit: int
) -> None:
    encoder, one = Encoder(tokens, CHAT, True, limit), example(*contents)
    fault = encoder.task and usable(encoder, ClientData((one,), (), ()))[1]
    answers = "".join(f"{answer}<|im_end|>\n" for answer in contents[1::2]).encode()
    if fault:
        with pytest.raises(DataError, match=r"labelled\.jsonl, line 3: its first answer begins"):
            encoder.prompts([one])
        return
    (prompt,) = encoder.prompts([one])
    assert len(prompt.ids) <= limit and prompt.places == sorted(set(prompt.places))
    assert [prompt.ids[place + 1] for place in prompt.places] == prompt.answers
    assert prompt.ids[-1] == prompt.answers[-1]  # nothing is read behind the last
    cut = cut_of(encoder, one)
    if cut is None:
        assert len(prompt.answers) == len(answers) - (len("<|im_end|>") - 1) * len(contents[1::2])


@given(CONTENTS)
def test_control_words_are_such_in_the_template_alone(tokens: Tokens, contents: list[str]) -> None:
    (prompt,) = Encoder(tokens, CHAT, True, 4096).prompts([example(*contents)])
    special = [id_ for id_ in prompt.ids if id_ < len(SPECIALS)]
    assert special == [1, 2] * len(contents)
    turns = "".join(
        f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in said(*contents)
    )
    assert text_of(tokens, prompt.ids) == turns


@given(st.text(max_size=30), st.integers(2, 40))
def test_every_token_of_a_text_but_the_first_is_asked_for(
    tokens: Tokens, text: str, limit: int
) -> None:
    encoder, one = Encoder(tokens, TEXTS, True, limit), Example(text)
    ids = tokens.encode(text)[:limit]
    if len(ids) < 2:
        assert usable(encoder, ClientData((one,), (), (one,)))[0] == ClientData((), (), ())
        return
    (prompt,) = encoder.prompts([one])
    assert prompt.ids == ids and prompt.answers == ids[1:]
    assert prompt.places == list(range(len(ids) - 1))
    cut = cut_of(encoder, one)
    assert (cut is None) == (len(tokens.encode(text)) <= limit)


def test_behind_a_first_token_of_the_tokenizer_all_of_a_text_is_asked_for(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    path = write_tiny_decoder(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.save(str(path))
    (prompt,) = Encoder(Tokens(tmp_path), TEXTS, True, 32).prompts([Example("a")])
    assert prompt.ids[0] == 1 and prompt.places == [0] and prompt.answers == prompt.ids[1:]
    (asked,) = Encoder(Tokens(tmp_path), CHAT, True, 64).prompts([example("a", "b")])
    assert asked.ids[:2] == [1, prompt.ids[1] - ord("a") + ord("u")]  # the template's, not another


# What this base cannot take


def reasons(encoder: Encoder, *texts: Example) -> tuple[int, str]:
    rows = {"labelled": Accounting(read=len(texts))}
    data, lines = usable(encoder, ClientData(texts, (), (), rows))
    assert rows["labelled"].rows == len(texts) and rows["labelled"].read == len(data.labelled)
    return len(data.labelled), " ".join(lines)


def of_template(folder: Path, template: str, limit: int = 200) -> Encoder:
    return Encoder(Tokens(write_tiny_decoder(folder, template)), CHAT, True, limit)


REFUSES = [
    ("{{ raise_exception('no ' + messages[0].content) }}", "chat template refuses it"),
    ("{{ messages[9].content.x }}", "chat template refuses it"),
    ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "no answer"),
    # What earlier turns were thinking is dropped: a beginning is no beginning of the whole.
    (
        "{% for m in messages %}[{{ m.content if loop.last else m.content[:1] }}]{% endfor %}",
        "otherwise when more follows",
    ),
    ("{% generation %}{% endgeneration %}{{ messages[0].content }}", "writes no answer"),
    (
        "{% set x %}{% generation %} {{ messages[0].content }} {% endgeneration %}{% endset %}"
        "{{ x | trim }}",
        "otherwise when more follows",
    ),
]


@pytest.mark.parametrize(("template", "words"), REFUSES, ids=[one[1] for one in REFUSES])
def test_a_conversation_that_the_template_does_not_take_is_counted(
    tmp_path: Path, template: str, words: str
) -> None:
    kept, line = reasons(of_template(tmp_path, template), example(SECRET, "bb", SECRET, "dd"))
    assert kept == 0 and words in line and SECRET not in line
    assert "1 template" in line and "labelled.jsonl, line 3" in line


def test_an_answer_behind_the_limit_is_counted(tmp_path: Path, tokens: Tokens) -> None:
    encoder = Encoder(tokens, CHAT, True, 60)
    kept, line = reasons(encoder, example("a" * 99, "b"), example("a", "b"))
    assert kept == 1 and "1 too long" in line and "raise --tokens" in line
    (prompt,) = encoder.prompts([example("a", "b" * 99)])
    assert len(prompt.ids) == 60 and len(prompt.places) == 60 - 20


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__x=1) %}",
        "{{ namespace.__init__.__globals__ }}",
    ],
)
def test_a_template_that_leaves_its_sandbox_ends_the_work(tmp_path: Path, template: str) -> None:
    with pytest.raises(TaskError, match="calls what is not safe, and is not run") as e:
        of_template(tmp_path, template).prompts([example(SECRET, "b")])
    assert SECRET not in str(e.value) and len(str(e.value).splitlines()) == 1


@pytest.mark.parametrize("template", ["{% for %}", "{{", "{% endfor %}", "{% nonsense %}"])
def test_a_template_that_is_none_is_told_with_its_line(tmp_path: Path, template: str) -> None:
    with pytest.raises(TaskError, match=r"its chat template cannot be read, line 2; copy"):
        of_template(tmp_path, f"\n{template}").prompts([example("a", "b")])


def test_a_base_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has no chat template; .* chat_template\.jinja beside"):
        of_template(tmp_path, "").prompts([example("a", "b")])


def test_of_several_templates_the_default_one_counts(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "<{{ 1 }}>"}]
    write_tiny_decoder(tmp_path, "")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    assert Tokens(tmp_path).template.render(said("a", "b")) == "<1>"


def test_a_token_that_begins_before_an_answer_belongs_to_it(tmp_path: Path) -> None:
    """`assistant: ` ends in a blank, which is of one token with the answer's first word."""
    from tokenizers import Tokenizer, models

    path = write_tiny_decoder(
        tmp_path,
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    )
    path /= "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    vocabulary = {**tokenizer.get_vocab(), "Ġy": 400}
    tokenizer.model = models.BPE(vocabulary, [("Ġ", "y")])
    tokenizer.save(str(path))
    (prompt,) = Encoder(Tokens(tmp_path), CHAT, True, 99).prompts([example("a", "yes")])
    assert text_of(Tokens(tmp_path), prompt.answers) == " yes\n" and prompt.answers[0] == 400


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_masked_base_is_asked_for_no_such_task(
    tiny_base: Base, folder: Path, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "labelled.jsonl").write_text('{"prompt": "a", "completion": "b", "text": "c d"}\n')
    with pytest.raises(WrongInput, match=f"of kind {kind} is asked of a causal one"):
        smidgen.train(tmp_path, tmp_path / "out", task=Task("t", kind=kind), base=tiny_base.folder)


def test_a_pack_keeps_the_template(folder: Path, tmp_path: Path) -> None:
    smidgen.pack(folder, 8, tmp_path / "pack")
    ours = Tokens(tmp_path / "pack").template
    assert ours.render(said("a", "b")) == Tokens(folder).template.render(said("a", "b"))


@pytest.mark.parametrize("body", [b"\xff\xfe{{ 1 }}", b"\x80"])
def test_a_damaged_template_is_told_in_one_line(tmp_path: Path, body: bytes) -> None:
    (write_tiny_decoder(tmp_path) / "chat_template.jinja").write_bytes(body)
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja cannot be read; copy"):
        Tokens(tmp_path)


def test_fedp2efts_generator_gives_ranks_to_chats(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"say {word}", "completion": f"{word}."} for word in ("yes", "no", "so")]
    (tmp_path / "labelled.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 4))
    base, name = open_base(str(folder)), "lora:4@q,v+generator"
    state = initial_adapter(parse_adapter(name), base, 0, seed=1)
    origin = Exported(name, base.peft_name, base.base_id, base.architecture, CHAT)
    write_peft_folder(tmp_path / "net", origin, encode_adapter(state))
    known: Any = {"task": CHAT, "base": folder, "engine": "onnx", "generator": tmp_path / "net"}
    known |= {"rank_budget": 1, "epochs": 2, "tokens": 128}
    made = [smidgen.personalize(tmp_path, tmp_path / out, **known) for out in ("one", "two")]
    assert made[0].method == "fedp2eft" and sum(made[0].ranks.values()) == 4
    one, two = (
        (tmp_path / out / "adapter_model.safetensors").read_bytes() for out in ("one", "two")
    )
    assert one == two
    told = smidgen.generate(["say yes"], tmp_path / "one", base=folder, new_tokens=3)
    assert len(told) == 1


def test_learned_rates_are_not_for_chats(folder: Path) -> None:
    spec = parse_adapter("lora:2@q,v+rates")
    with pytest.raises(AdapterError, match=r"\+rates is for tasks of labels, \+generator also"):
        first_adapter(open_base(str(folder)), spec, CHAT, "", 0, 64)
