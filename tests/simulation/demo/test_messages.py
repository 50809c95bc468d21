import re
from collections import Counter
from pathlib import Path

import pytest

from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_folder
from smidgen.edge_client.texts.parts import Labels
from smidgen.simulation.demo.messages import (
    DATA,
    DEVICES,
    HOMES,
    LABELS,
    Message,
    load_messages,
    write_client_folders,
)

LANGUAGES = ("en", "es", "fr")
GROUPS = (DEVICES[:4], DEVICES[4:8], DEVICES[8:])
LABEL_WORDS = {
    "security": {"security", "seguridad", "sécurité"},
    "delivery": {"delivery", "entrega", "livraison"},
    "energy": {"energy", "power", "energía", "énergie"},
    "weather": {"weather", "tiempo", "météo"},
    "family": {"family", "familia", "famille"},
    "health": {"health", "salud", "santé"},
}


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return load_messages()


def labels_of(messages: list[Message], *devices: str) -> set[str]:
    return {m.label for m in messages if m.split == "train" and m.device in devices}


def test_every_device_has_its_three_parts(messages: list[Message]) -> None:
    counts = Counter((m.device, m.split) for m in messages)
    parts = {"train": 90, "unlabelled": 150, "test": 60}
    assert counts == {(d, split): count for d in DEVICES for split, count in parts.items()}


def test_half_of_the_texts_are_english(messages: list[Message]) -> None:
    assert Counter(m.language for m in messages) == {"en": 1800, "es": 900, "fr": 900}


def test_ids_count_the_messages_of_a_device(messages: list[Message]) -> None:
    expected = [f"{device}-{number:03d}" for device in DEVICES for number in range(1, 301)]
    assert [m.id for m in messages] == expected


def test_no_two_texts_differ_by_case_marks_and_digits_alone(messages: list[Message]) -> None:
    letters = {re.sub(r"[\W\d_]+", "", m.text.casefold()) for m in messages}
    assert len(letters) == len(messages)


def test_no_text_shows_the_notation_it_came_from(messages: list[Message]) -> None:
    notation = re.compile(r"[{}]|\[(?!hub-)|\S\||  |^\s|\s$")  # hub-06 writes "7:40 | ..."
    assert not [m.text for m in messages if notation.search(m.text)]


def test_a_device_labels_two_or_three_of_the_six(messages: list[Message]) -> None:
    assert all(2 <= len(labels_of(messages, device)) <= 3 for device in DEVICES)


@pytest.mark.parametrize("kept", [8, 16, 40])
def test_the_first_labelled_texts_cover_the_labels_of_the_device(
    messages: list[Message], kept: int
) -> None:
    for device in DEVICES:
        mine = [m.label for m in messages if m.device == device and m.split == "train"]
        counts = Counter(mine[:kept])
        assert set(counts) == set(mine)
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("group", GROUPS)
def test_four_devices_label_everything_in_three_languages(
    messages: list[Message], group: tuple[str, ...]
) -> None:
    languages = {m.device: m.language for m in messages}
    assert labels_of(messages, *group) == set(LABELS)
    assert sorted(languages[device] for device in group) == ["en", "en", "es", "fr"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_every_label_labelled(messages: list[Message], language: str) -> None:
    devices = {m.device for m in messages if m.language == language}
    assert labels_of(messages, *devices) == set(LABELS)


def test_every_test_part_is_balanced_and_every_mixture_is_not(messages: list[Message]) -> None:
    for device in DEVICES:
        mine = [m for m in messages if m.device == device]
        assert Counter(m.label for m in mine if m.split == "test") == dict.fromkeys(LABELS, 10)
        unlabelled = Counter(m.label for m in mine if m.split == "unlabelled")
        assert set(unlabelled) == set(LABELS)
        assert max(unlabelled.values()) > 1.5 * min(unlabelled.values())


@pytest.mark.parametrize("label", LABELS)
def test_a_label_word_is_rare_in_its_class(messages: list[Message], label: str) -> None:
    texts = [m.text.casefold() for m in messages if m.label == label]
    hits = [text for text in texts if LABEL_WORDS[label] & set(re.findall(r"\w+", text))]
    assert len(hits) < 0.05 * len(texts)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("label", LABELS)
def test_no_single_word_gives_a_class_away(
    messages: list[Message], label: str, language: str
) -> None:
    texts = [m.text for m in messages if (m.label, m.language) == (label, language)]
    words = Counter(
        word for text in texts for word in set(re.findall(r"[^\W\d_]{4,}", text.casefold()))
    )
    assert words.most_common(1)[0][1] < 0.3 * len(texts)


def test_a_client_folder_reads_back_as_its_part_of_the_file(
    messages: list[Message], tmp_path: Path
) -> None:
    (folder,) = write_client_folders(tmp_path, {"hub-07": ["hub-07"]})
    mine = [m for m in messages if m.device == "hub-07"]
    data = read_folder(folder, read_task(folder / "task.toml"))
    assert [e.text for e in data.labelled] == [m.text for m in mine if m.split == "train"]
    assert [e.text for e in data.unlabelled] == [m.text for m in mine if m.split == "unlabelled"]
    assert [e.label for e in data.test] == [m.label for m in mine if m.split == "test"]
    assert {e.language for e in (*data.labelled, *data.unlabelled, *data.test)} == {"es"}


def test_an_unlabelled_file_has_no_label_column(tmp_path: Path) -> None:
    (folder,) = write_client_folders(tmp_path, {"hub-01": ["hub-01"]})
    header = (folder / "unlabelled.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "text,language,id"


def test_the_four_homes_share_out_all_writers_and_know_different_labels(tmp_path: Path) -> None:
    folders = write_client_folders(tmp_path, HOMES)
    data = [read_folder(folder, Labels(LABELS)) for folder in folders]
    assert sorted(device for home in HOMES.values() for device in home) == list(DEVICES)
    assert [len(home.labelled) for home in data] == [270] * 4
    assert [{e.language for e in home.test} for home in data] == [{"en"}, {"en"}, {"es"}, {"fr"}]


def test_the_task_has_the_labels_of_the_file() -> None:
    task = read_task(DATA / "task.toml")
    assert task.labels == LABELS
    assert task.verbalizer["energy"] == "power"
