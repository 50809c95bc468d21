#!/usr/bin/env bash
# spaCy 3.8.18: a Doc that goes through `to_json` and `from_json` has no unannotated tokens left. A
# token whose entity is not known ("" in `ent_iob_`, what `set_ents(..., missing=...)` writes) comes
# back as one outside of all entities, "O"; so does one that may not be an entity (blocked). In a
# text that was annotated in part, all that nobody has looked at counts as a negative: the scorer
# takes a right entity there for a wrong one, and training learns from it. DocBin keeps both states.
# Also lost are the knowledge base's ids of entities; those of span groups are kept.
#
# Seen:
#   before {'Rome': 'B', 'or': 'O', 'Bern': ''}, precision 1.0, ids Q220 Q220
#   DocBin {'Rome': 'B', 'or': 'O', 'Bern': ''}, precision 1.0, ids Q220 Q220
#   JSON {'Rome': 'B', 'or': 'O', 'Bern': 'O'}, precision 0.5, ids - Q220
# What helps: DocBin.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet spacy==3.8.18
"$folder/env/bin/python" - <<'PYTHON'
import json

import spacy
from spacy.scorer import get_ner_prf
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

vocabulary = spacy.blank("en").vocab
WORDS = ["Rome", "or", "Bern"]


def through_docbin(doc):
    return next(DocBin().from_bytes(DocBin(docs=[doc]).to_bytes()).get_docs(vocabulary))


def through_json(doc):
    return Doc(vocabulary).from_json(json.loads(json.dumps(doc.to_json())))


gold = Doc(vocabulary, words=WORDS)
rome = Span(gold, 0, 1, "PLACE", kb_id="Q220")
gold.set_ents([rome], missing=[gold[2:3]], default="outside")
gold.spans["places"] = [rome]
seen = {}
for name, doc in {
    "before": gold,
    "DocBin": through_docbin(gold),
    "JSON": through_json(gold),
}.items():
    guess = Doc(vocabulary, words=WORDS)
    guess.ents = [Span(guess, 0, 1, "PLACE"), Span(guess, 2, 3, "PLACE")]
    scores = get_ner_prf([Example(guess, doc)])
    tags = {token.text: token.ent_iob_ for token in doc}
    ids = " ".join(one[0].kb_id_ or "-" for one in (doc.ents, doc.spans["places"]))
    print(f"{name} {tags}, precision {scores['ents_p']}, ids {ids}")
    seen[name] = [*tags.values()], scores["ents_p"], ids
assert seen["before"] == seen["DocBin"] == (["B", "O", ""], 1.0, "Q220 Q220"), seen
assert seen["JSON"] == (["B", "O", "O"], 0.5, "- Q220"), "it is otherwise now"
PYTHON
