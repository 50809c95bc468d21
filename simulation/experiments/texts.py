"""Training, held-out and test texts of an experiment, drawn by its seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError
from smidgen.simulation.population.clients import Population


@dataclass(frozen=True)
class OwnedTexts:
    """Texts that adapters are judged by.

    Attributes:
        texts: The texts.
        owned: Client -> indices of its own among them.
    """

    texts: tuple[Example, ...]
    owned: Mapping[str, np.ndarray]


def trained_on(dataset: DataSet, said: Experiment) -> tuple[DataSet, tuple[Example, ...]]:
    """A set with the training texts that an experiment has, and those that it keeps aside.

    Raises:
        DataError: A language has too few texts to keep so many aside and train on others, or the
            set has pairs in several languages, of which nobody knows what is whose translation.
    """
    if not (said.train_texts or said.fewer or said.dev_texts):
        return dataset, ()
    texts = dataset.train
    seed, most = derive_seed(said.seed, "train texts"), said.train_texts or len(texts)
    held_back = 0 if said.train_texts else said.dev_texts
    aside = drawn(texts, held_back, derive_seed(said.seed, "dev texts"))
    taken = set(aside)
    rest = [one for row, one in enumerate(texts) if row not in taken]
    rows = drawn(rest, most, seed, dict(said.fewer))
    if said.train_texts and said.dev_texts:
        chosen = set(rows)
        others = [one for row, one in enumerate(rest) if row not in chosen]
        kept = [others[row] for row in drawn(others, said.dev_texts, seed)]
    else:
        kept = [texts[row] for row in aside]
    left = replace(dataset, train=tuple(rest[row] for row in rows))
    if said.dev_texts:
        _check_aside(dataset, kept, left.train, said.dev_texts)
    return left, tuple(kept)


def _check_aside(
    dataset: DataSet, kept: Sequence[Example], left: Sequence[Example], dev_texts: int
) -> None:
    """Refuse a set too small to keep so many texts of each language aside and train on others."""
    languages = {example.language for example in dataset.train}
    asked = f"dev_texts = {dev_texts}: {dataset.name}"
    if len(languages) > 1 and any(example.text_b for example in dataset.train):
        raise DataError(f"{asked} has pairs in several languages")
    aside = Counter(example.language for example in kept)
    trained = Counter(example.language for example in left)
    for language in sorted(languages):
        of = f" of {language}" if language else ""
        demand(
            aside[language] == dev_texts,
            f"{asked} has {aside[language]} training texts{of} to keep aside; set dev_texts or "
            "train_texts to fewer",
            DataError,
        )
        demand(
            trained[language] > 0,
            f"{asked} has no text{of} left to train on; set dev_texts to fewer",
            DataError,
        )


def gated(population: Population, texts: int, seed: int) -> tuple[Population, list[int]]:
    """Clients without some of the texts whose label none of them knows, and those, ascending.

    Law: who holds which labelled texts is what it is without labelling, by the same seed; so is
    what an experiment that labels differs by from one that does not, paired by seed.

    Raises:
        ExperimentError: So many texts are not there, with one more to be labelled.
    """
    pool = np.sort(np.concatenate([client.unlabelled for client in population]))
    if len(pool) <= texts:
        raise ExperimentError(
            f"labelling: gate_texts = {texts}, and one more, of texts that no client has a label "
            f"of are expected; there are {len(pool)}: set deal.labelled or gate_texts to fewer"
        )
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "gate")))
    chosen = np.sort(generator.permutation(pool)[:texts])
    rest = tuple(
        replace(client, unlabelled=np.setdiff1d(client.unlabelled, chosen)) for client in population
    )
    return rest, chosen.tolist()


def judged(dataset: DataSet, part: str, per_language: int) -> DataSet:
    """A set with as many texts to be judged by, the same ones for every seed.

    Args:
        dataset: All texts.
        part: `test`; or `dev`, training texts, which are not trained on then. Of pairs, no first
            text is on both sides.
        per_language: How many of each language; 0 for all test texts, or 1000 of `dev`.

    Raises:
        DataError: `dev` would leave nothing of a language to train on, or the set has pairs in
            several languages, of which nobody knows what is whose translation.
    """
    if part == "test":
        rows = drawn(dataset.test, per_language or len(dataset.test))
        return replace(dataset, test=tuple(dataset.test[row] for row in rows))
    has_pairs = any(example.text_b for example in dataset.train)
    languages = sorted({example.language for example in dataset.train})
    if has_pairs and len(languages) > 1:
        raise DataError(f"judged_on = dev: {dataset.name} has pairs; name one of its languages")
    aside = drawn(dataset.train, per_language or 1000)
    taken = set(aside)
    firsts = {dataset.train[row].text for row in aside}
    kept = [
        example
        for row, example in enumerate(dataset.train)
        if row not in taken and not (has_pairs and example.text in firsts)
    ]
    for language in languages:
        if not any(example.language == language for example in kept):
            raise DataError(
                f"judged_on = dev leaves no training text of {language or dataset.name}; "
                "set test_texts to fewer"
            )
    return replace(dataset, train=tuple(kept), test=tuple(dataset.train[row] for row in aside))


def drawn(
    texts: Sequence[Example],
    per_language: int,
    seed: int = 0,
    fewer: Mapping[str, int] = MappingProxyType({}),
) -> list[int]:
    """Rows of a number of texts per language (or all it has), ascending.

    Law: those of a smaller number are among those of a larger one.

    Args:
        texts: All texts.
        per_language: How many of each language.
        seed: Which ones.
        fewer: Of which languages how many instead.
    """
    chosen: list[int] = []
    for language in sorted({example.language for example in texts}):
        rows = [row for row, example in enumerate(texts) if example.language == language]
        generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "judged", language)))
        most, order = fewer.get(language, per_language), generator.permutation(len(rows))
        chosen += [rows[index] for index in order[:most]]
    return sorted(chosen)
