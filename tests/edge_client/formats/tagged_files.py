"""Texts with tags as hypothesis draws them, and as files hold them."""

from hypothesis import strategies as st

from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.parts import Labels

DRUGS = Labels(("Drug", "Illness"), kind_named("tagging").files)
# A line's ends and a tab part words in columns, and NUL is no text; a word may be anything else.
LETTERS = st.characters(codec="utf-8", exclude_characters="\0\t\r\n\ufeff")
WORDS = st.text(LETTERS, min_size=1, max_size=9).filter(
    lambda word: word == word.strip(" ") and word.strip() and not word.startswith("-DOCSTART-")
)
ENTITIES = st.tuples(st.sampled_from(DRUGS.labels), st.integers(0, 3))


@st.composite
def tagged(draw: st.DrawFn) -> Example:
    """A text of one word or more, tagged as BIO has it."""
    tags = list[str]()
    for entity in draw(st.lists(st.none() | ENTITIES, min_size=1, max_size=6)):
        if entity is None:
            tags.append("O")
        else:
            label, more = entity
            tags += [f"B-{label}", *[f"I-{label}"] * more]
    words = tuple(draw(st.lists(WORDS, min_size=len(tags), max_size=len(tags))))
    return Example(" ".join(words), words=words, tags=tuple(tags))


def as_columns(texts: list[Example], between: str = "\t", middle: tuple[str, ...] = ()) -> str:
    """A word and its tag on each line."""
    rows = (
        [between.join((word, *middle, tag)) for word, tag in zip(one.words, one.tags, strict=True)]
        for one in texts
    )
    return "\n\n".join("\n".join(lines) for lines in rows) + "\n"
