"""Which texts and how many tokens: the embedded base's recipe, and one for named languages."""

from dataclasses import dataclass

from simulation.pretraining.checkpoint import PretrainError
from simulation.pretraining.corpus import LANGUAGES, SOURCES, Sources
from simulation.pretraining.texts import ALL_LANGUAGES, multilingual_sources


@dataclass(frozen=True)
class Recipe:
    """What a base is made of, but for its teacher.

    Attributes:
        sources: Sets of texts.
        languages: Judged one by one.
        vocabulary: Tokens, at most.
        exponent: A language's share of the words is its share in the texts to this power; None
            takes the texts as they are.
        is_embedded: Whether it is the base that comes with the package.
    """

    sources: Sources
    languages: tuple[str, ...]
    vocabulary: int
    exponent: float | None
    is_embedded: bool


EMBEDDED = Recipe(SOURCES, LANGUAGES, 20_000, None, is_embedded=True)


def recipe_of(languages: str | None) -> Recipe:
    """The embedded base's recipe, or the multilingual one.

    Args:
        languages: `all`, names with commas between them, or None for the embedded base.

    Raises:
        PretrainError: A language without texts is named.
    """
    if languages is None:
        return EMBEDDED
    named = [name.strip() for name in languages.split(",")]
    chosen = ALL_LANGUAGES if named == ["all"] else tuple(dict.fromkeys(named))
    if unknown := [name for name in chosen if name not in ALL_LANGUAGES]:
        raise PretrainError(
            f"--languages {languages}: no texts in {', '.join(unknown)!r}; give all, or some of "
            f"{', '.join(ALL_LANGUAGES)}"
        )
    return Recipe(multilingual_sources(chosen), chosen, 30_000, 0.5, is_embedded=False)
