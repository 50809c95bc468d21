from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smidgen.edge_client.tasks.task import Task, read_task, task_from_mapping, task_toml
from smidgen.edge_client.texts.prompts.patterns import TaskError

WORDS = {"good": "great", "bad": "terrible"}


@pytest.mark.parametrize(
    ("pattern", "lack"),
    [
        ("{text}", "exactly one"),
        ("[MASK] [MASK] {text}", "exactly one"),
        ("[MASK] : nothing", "{text} once"),
        ("[MASK] {text} {text}", "{text} once"),
        ("[MASK] {text} {text_b}", "{text} once"),
    ],
)
def test_a_pattern_without_one_mask_and_one_text_is_named(pattern: str, lack: str) -> None:
    with pytest.raises(TaskError, match=lack.replace("{", r"\{").replace("}", r"\}")):
        Task("t", ("good", "bad"), (pattern,), WORDS)


def test_a_pair_pattern_is_allowed() -> None:
    Task("t", ("good", "bad"), ("{text_a} ? [MASK] , {text_b}",), WORDS)


def test_a_label_without_a_word_is_named() -> None:
    with pytest.raises(TaskError, match="no word for 'bad'"):
        Task("t", ("good", "bad"), ("[MASK] {text}",), {"good": "great"})


def test_two_labels_with_one_word_are_refused() -> None:
    with pytest.raises(TaskError, match="share one label word"):
        Task("t", ("good", "bad"), ("[MASK] {text}",), {"good": "great", "bad": "great"})


@pytest.mark.parametrize(
    "table",
    [
        {"labels": ["###", "mail"], "patterns": ["[MASK] {text}"]},
        {"labels": ["a", "b"], "patterns": ["[MASK] {text}"], "verbalizer": {"a": "?!", "b": "b"}},
        {"labels": ["Drug", "--"], "kind": "tagging"},
    ],
)
def test_a_word_of_punctuation_alone_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(TaskError, match=r"'(###|\?!|--)' is punctuation alone"):
        task_from_mapping(table, "here")
    signs = {"labels": ["+", "-"], "patterns": ["[MASK] {text}"]}  # with words of their own
    task_from_mapping(signs | {"verbalizer": {"+": "good", "-": "bad"}}, "here")


def test_labels_are_their_own_words_by_default() -> None:
    task = task_from_mapping({"labels": ["a", "b"], "patterns": ["[MASK] {text}"]}, "here")
    assert task.words() == ("a", "b")


@pytest.mark.parametrize(
    ("name", "labels", "patterns", "told"),
    [
        ("t", 2, ("[MASK] {text}" + "x" * 10**7,), "a pattern of a task has at most 10000"),
        ("t", 2, ("[MASK] {text}" * 10**6,), "a pattern of a task has at most 10000"),
        ("t", 2, ("[MASK] {text}",) * 10**5, "at most 100 patterns, not 100000"),
        ("t", 10**5, ("[MASK] {text}",), "at most 1000 labels, not 100000"),
        ("t" * 10**7, 2, ("[MASK] {text}",), "the name of a task has at most 200"),
    ],
)
def test_a_task_of_insane_size_is_refused_at_once(
    name: str, labels: int, patterns: tuple[str, ...], told: str
) -> None:
    words = {f"label {place}": f"word {place}" for place in range(labels)}
    with pytest.raises(TaskError, match=told) as found:
        Task(name, tuple(words), patterns, words)
    assert len(str(found.value)) < 100


@pytest.mark.parametrize("where", ["the name", "a label", "a label word", "a pattern"])
def test_half_a_surrogate_pair_is_no_part_of_a_task(where: str) -> None:
    def half(what: str) -> str:
        return "\ud83d" if what == where else ""

    label = f"good{half('a label')}"
    words = {label: f"great{half('a label word')}", "bad": "terrible"}
    pattern = f"[MASK] {half('a pattern')}{{text}}"
    told = f"^{where} of a task holds half of a surrogate pair, which is no text: "
    with pytest.raises(TaskError, match=told) as found:
        Task(f"t{half('the name')}", (label, "bad"), (pattern,), words)
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    "body",
    [
        b'labels = ["a", "b"]\npatterns = ["[MASK] {text}' + b"x" * 10**7 + b'"]\n',
        b"a." * 10**6 + b"a = 1\n",
        b"a = " + b"[" * 10**5 + b"\n",
        b"\x1b]0;title\x07 = 1\n",
        b'"\\u001b[31m' + b"y" * 10**5 + b'" = 1\n',
    ],
)
def test_a_task_file_made_to_take_long_ends_in_one_short_line(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(body)
    with pytest.raises(TaskError) as found:
        read_task(path)
    assert len(str(found.value)) < 600 and str(found.value).isprintable()


def test_an_unknown_key_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text('labels = ["a", "b"]\npatterns = ["[MASK] {text}"]\ncolour = 1\n')
    with pytest.raises(TaskError, match=r"task.toml: unknown key 'colour'"):
        read_task(path)


def test_an_ensemble_that_is_neither_true_nor_false_is_named() -> None:
    table = {"labels": ["a", "b"], "patterns": ["[MASK] {text}"], "ensemble": "yes"}
    with pytest.raises(TaskError, match="here: ensemble is true or false, not 'yes'"):
        task_from_mapping(table, "here")


@pytest.mark.parametrize(
    ("patterns", "ensemble", "asked"),
    [
        (("[MASK] {text}", "{text} [MASK]", "so {text} [MASK]"), False, ("{text} [MASK]",)),
        (("[MASK] {text}", "{text} [MASK]"), True, ("[MASK] {text}", "{text} [MASK]")),
        (("[MASK] {text}",), False, ("[MASK] {text}",)),  # which is refused
    ],
)
def test_a_causal_model_is_asked_by_the_first_pattern_that_ends_with_the_mask(
    patterns: tuple[str, ...], ensemble: bool, asked: tuple[str, ...]
) -> None:
    task = Task("t", ("good", "bad"), patterns, WORDS, ensemble)
    assert task.asked(is_causal=True) == asked


def test_the_first_pattern_is_asked_and_all_of_an_ensemble() -> None:
    patterns = ("[MASK] {text}", "{text} [MASK]")
    assert Task("t", ("good", "bad"), patterns, WORDS).asked() == patterns[:1]
    assert Task("t", ("good", "bad"), patterns, WORDS, ensemble=True).asked() == patterns


def test_a_task_of_before_ensembles_is_read() -> None:
    body = (
        b'{"name":"t","labels":["good","bad"],"patterns":["[MASK] {text}"],'
        b'"verbalizer":{"good":"great","bad":"terrible"}}'
    )
    known = Task("t", ("good", "bad"), ("[MASK] {text}",), WORDS)
    assert msgspec.json.decode(body, type=Task) == known


def test_a_missing_task_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="--task FILE"):
        read_task(tmp_path / "task.toml")


UNICODE = st.text(st.characters(codec="utf-8"), max_size=9)
WORDS_OF_LETTERS = UNICODE.filter(lambda text: any(map(str.isalnum, text)))
HARD = ['say "no"', "back\\slash", "naïve 😀", "a.b = #'", "new\r\nline \x00\x7f\x85\u2028"]


@given(
    UNICODE,
    st.lists(WORDS_OF_LETTERS, min_size=2, max_size=4, unique=True),
    st.booleans(),
)
@example("größe", HARD, True)
def test_a_task_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, labels: list[str], ensemble: bool
) -> None:
    patterns = ("[MASK] {text_a} {text_b}", 'it\'s [MASK]: "{text}"\\')
    words = dict(zip(labels, labels[::-1], strict=True))
    task = Task(name, tuple(labels), patterns, words, ensemble)
    path = tmp_path_factory.mktemp("task") / "task.toml"
    path.write_text(task_toml(task), encoding="utf-8")
    assert read_task(path) == task


@pytest.mark.parametrize("label", ["O", "B-Drug", "I-Drug"])
def test_a_tag_in_place_of_a_type_is_refused(label: str) -> None:
    with pytest.raises(TaskError, match=r"is a tag; give types alone, such as '(Drug|Disease)'"):
        Task("drugs", (label,), kind="tagging")


def test_an_unknown_key_of_masking_is_named() -> None:
    with pytest.raises(TaskError, match="masking: unknown key 'shair'; share and whole_words are"):
        task_from_mapping({"kind": "mlm", "masking": {"shair": 0.1}}, "task.toml")
