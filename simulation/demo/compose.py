"""Composes the hub demo data from the phrase files in `simulation/data`.

    python -m simulation.demo.compose --out simulation/data

writes `hub_messages.csv`, the same bytes for the same phrase files on every Python: all draws go
through `random.Random.random`, the one method whose sequence Python promises to keep. A phrase
file holds one frame per line; a message is a frame, filled in, with at most one tail behind it,
after an app's name or in its household's style.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from simulation.demo.messages import DATA, LABELS, Message, write_messages

T = TypeVar("T")

SEED = 20_260_701
LANGUAGES = ("en", "es", "fr")
LABELLED, TEST_PER_LABEL, TEST_UNSEEN = 90, 10, 3
TAIL_RATE, APP_RATE = 0.5, 0.4
REDRAWS = 500
TEST_ONLY = (3, 6, 9)

EMOJI = ("🙂", "👍", "😅", "❤️", "🙄")
ALTERNATIVES = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
SLOT = re.compile(r"\{([^{}]+)\}")
LONG_WORD = re.compile(r"[^\W\d_]{4,}")
RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Frame:
    """One line of a phrase file.

    Attributes:
        template: The line.
        tails: What may follow it; shared by all splits.
        apps: Who may have sent it; none for a person.
        is_person: Written or spoken by someone, so the household's style applies.
        is_test_only: Never used for labelled or unlabelled texts.
    """

    template: str
    tails: Sequence[str]
    apps: Sequence[str]
    is_person: bool
    is_test_only: bool


@dataclass(frozen=True)
class Household:
    """The people behind one device.

    Attributes:
        device: `hub-01` ...
        labels: What its owner labelled.
        mixture: Unlabelled texts per label.
        style: Rates of `lower`, `unpunctuated`, `shortened`, `voice`, `emoji` per text, of
            `typos` per word of four letters or more.
        slots: Fillings, its own before those of its language.
    """

    device: str
    labels: tuple[str, ...]
    mixture: Mapping[str, int]
    style: Mapping[str, float]
    slots: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Phrases:
    """One phrase file.

    Attributes:
        language: Its code.
        frames: Label -> frames.
        abbreviations: Word -> how a hurried writer shortens it.
        contractions: Two words -> the one the language makes of them (`de el` -> `del`).
        households: Its devices.
    """

    language: str
    frames: Mapping[str, Sequence[Frame]]
    abbreviations: Mapping[str, str]
    contractions: Mapping[str, str]
    households: Sequence[Household]


def read_phrases(path: Path) -> Phrases:
    """Read one `phrases_*.toml`."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    households = [
        Household(
            device,
            tuple(home["labels"]),
            home["mixture"],
            home["style"],
            {**table["slots"], **home["slots"]},
        )
        for device, home in table["households"].items()
    ]
    frames = {
        label: _frames(table[label], "machine") + _frames(table[label], "person")
        for label in LABELS
    }
    words = table["abbreviations"], table["contractions"]
    return Phrases(table["language"], frames, *words, households)


def _frames(table: Mapping[str, Any], register: str) -> list[Frame]:
    is_person = register == "person"
    tails = table[f"{register}_tails"].strip().splitlines()
    apps = () if is_person else table["apps"]
    return [
        Frame(line, tails, apps, is_person, number % 10 in TEST_ONLY)
        for number, line in enumerate(table[register].strip().splitlines(), start=1)
    ]


def compose(phrases: Sequence[Phrases], seed: int = SEED) -> list[Message]:
    """Write all messages, devices in order, each its labelled, unlabelled and test texts.

    No two texts have the same `likeness`. Labelled texts go round the device's labels, so any
    prefix of them is balanced to within one.

    Raises:
        ValueError: The frames cannot give as many different texts as asked for.
    """
    messages: list[Message] = []
    seen: set[str] = set()
    pairs = [(home, source) for source in phrases for home in source.households]
    for home, source in sorted(pairs, key=lambda pair: pair[0].device):
        device = home.device
        writer = _Writer(home, source, random.Random(f"{seed}/{device}"), seen)
        parts = (
            ("train", writer.labelled()),
            ("unlabelled", writer.unlabelled()),
            ("test", writer.test()),
        )
        rows = [(split, label, text) for split, part in parts for label, text in part]
        messages += [
            Message(f"{device}-{number:03d}", device, source.language, split, label, text)
            for number, (split, label, text) in enumerate(rows, start=1)
        ]
    return messages


class _Writer:
    """One device's draws, in a fixed order; shares `seen` with the other devices."""

    def __init__(
        self, home: Household, phrases: Phrases, rng: random.Random, seen: set[str]
    ) -> None:
        self.home, self.phrases, self.rng, self.seen = home, phrases, rng, seen

    def labelled(self) -> list[tuple[str, str]]:
        labels = self.home.labels
        shares = {
            label: LABELLED // len(labels) + (number < LABELLED % len(labels))
            for number, label in enumerate(labels)
        }
        texts = {label: self._texts(label, shares[label], unseen=False) for label in labels}
        order = [labels[number % len(labels)] for number in range(LABELLED)]
        return [(label, next(texts[label])) for label in order]

    def unlabelled(self) -> list[tuple[str, str]]:
        rows = [
            (label, text)
            for label, count in self.home.mixture.items()
            for text in self._texts(label, count, unseen=False)
        ]
        return shuffled(rows, self.rng)

    def test(self) -> list[tuple[str, str]]:
        rows = [
            (label, text)
            for label in LABELS
            for unseen, count in ((True, TEST_UNSEEN), (False, TEST_PER_LABEL - TEST_UNSEEN))
            for text in self._texts(label, count, unseen=unseen)
        ]
        return shuffled(rows, self.rng)

    def _texts(self, label: str, count: int, *, unseen: bool) -> Iterator[str]:
        frames = [f for f in self.phrases.frames[label] if f.is_test_only == unseen]
        frames = shuffled(frames, self.rng)
        for number in range(count):
            yield self._new_text(frames, number)

    def _new_text(self, frames: Sequence[Frame], start: int) -> str:
        for number in range(start, start + REDRAWS):
            text = self._text(frames[number % len(frames)])
            if (key := likeness(text)) not in self.seen:
                self.seen.add(key)
                return text
        raise ValueError(f"{self.home.device}: {frames[0].template!r} and others are used up")

    def _text(self, frame: Frame) -> str:
        slots, rng = self.home.slots, self.rng
        text = fill(self._template(frame), slots, rng)
        for words, contracted in self.phrases.contractions.items():
            text = re.sub(rf"\b{words}\b", contracted, text)
        if not frame.is_person:
            return sentence_case(text)
        return restyle(text, self.home.style, self.phrases.abbreviations, rng)

    def _template(self, frame: Frame) -> str:
        rng, template = self.rng, frame.template
        if rng.random() < TAIL_RATE:
            stop = "" if template[-1] in "?!" else pick((".", "." if frame.apps else ","), rng)
            template += f"{stop} {pick(frame.tails, rng)}"
        if frame.is_person:
            return "{opener}" + template + "{closer}"
        has_app = rng.random() < APP_RATE
        return (f"{pick(frame.apps, rng)}: " if has_app else "{stamp}") + template


def likeness(text: str) -> str:
    """The text without case, marks and digits: equal for texts that count as the same."""
    return " ".join(re.findall(r"[^\W\d_]+", text.casefold()))


def fill(template: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Choose among `[a|b]`, then fill slots until none is left (fillings may hold slots)."""
    text = ALTERNATIVES.sub(lambda match: pick(match[1].split("|"), rng), template)
    while SLOT.search(text):
        text = SLOT.sub(lambda match: _filling(match[1], slots, rng), text)
    return text


def _filling(slot: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    bounds = RANGE.fullmatch(slot)
    if bounds is None:
        return pick(slots[slot], rng)
    low, high = int(bounds[1]), int(bounds[2])
    number = low + int(rng.random() * (high - low + 1))
    return f"{number:0{len(bounds[1])}d}" if bounds[1].startswith("0") else str(number)


def restyle(
    text: str, style: Mapping[str, float], abbreviations: Mapping[str, str], rng: random.Random
) -> str:
    """Write a person's text the household's way."""
    is_voice, is_lower, is_bare, is_short, has_emoji = (
        rng.random() < style[name]
        for name in ("voice", "lower", "unpunctuated", "shortened", "emoji")
    )
    if is_voice:
        return re.sub(r"\s+", " ", re.sub(r"[,.!?¿¡:]+(?=\s|\w|$)", " ", text)).strip().lower()
    if is_short:
        words = (abbreviations.get(word, word) for word in text.split(" "))
        text = " ".join(words)
    text = text.lower() if is_lower else sentence_case(text)
    if is_bare:
        text = re.sub(r"(?<!\d)[,.!?¿¡]+", "", text)
    text = LONG_WORD.sub(lambda match: _typed(match[0], style["typos"], rng), text)
    text = re.sub(r"([?!])[.,]", r"\1", text)
    return re.sub(r"\s+", " ", text).strip() + (f" {pick(EMOJI, rng)}" if has_emoji else "")


def _typed(word: str, rate: float, rng: random.Random) -> str:
    if rng.random() >= rate:
        return word
    at = 1 + int(rng.random() * (len(word) - 2))
    letters = word[at : at + 2]
    slip = pick((letters[::-1], letters[1:], letters[0] + letters), rng)  # swap, drop, double
    return word[:at] + slip + word[at + 2 :]


def sentence_case(text: str) -> str:
    """Raise the first letter, after an opening mark if there is one."""
    text = text.strip()
    first = 1 if text[:1] in "¿¡" else 0
    return text[:first] + text[first : first + 1].upper() + text[first + 1 :]


def pick(items: Sequence[str], rng: random.Random) -> str:
    return items[int(rng.random() * len(items))]


def shuffled(items: Sequence[T], rng: random.Random) -> list[T]:
    keyed = sorted((rng.random(), number) for number in range(len(items)))
    return [items[number] for _, number in keyed]


def main() -> None:
    """Write the committed file anew."""
    parser = argparse.ArgumentParser(description="Compose the hub demo data.")
    parser.add_argument("--out", type=Path, default=DATA, help="folder for hub_messages.csv")
    out = parser.parse_args().out
    messages = compose([read_phrases(DATA / f"phrases_{code}.toml") for code in LANGUAGES])
    path = write_messages(out, messages)
    print(f"{path}: {len(messages)} messages, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
