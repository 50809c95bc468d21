#!/usr/bin/env bash
# bioc 2.1 (BioC documents, with a converter from brat's standoff): an annotation that has a note
# loses its label, for the note's own type is written over it, and of an attribute only the values
# are kept, not its name. brat's binary attributes, such as `Negated`, have no value, so a finding
# that was negated is one that was not. A second attribute takes the first one's place.
#
# In bioc.tools.brat2bioc the type of a note goes to the key `type` of its annotation, where the
# label is, and `BratAttribute.type` is not read. Reading and writing brat alone keeps both.
#
# Seen:
#   T1 Sign           with an attribute, Negated   -> type=Sign, attributes=''
#   T2 Sign           with a note                  -> type=AnnotatorNotes
# What helps: take labels and attributes from the brat document, not from its conversion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet bioc==2.1
"$folder/env/bin/python" - <<'PYTHON'
from bioc import brat
from bioc.tools.brat2bioc import brat2bioc_doc

TEXT = "No fever, mild cough.\n"
MARKED = "T1\tSign 3 8\tfever\nA1\tNegated T1\nT2\tSign 15 20\tcough\n"
NOTE = "#1\tAnnotatorNotes T2\tsee page 2\n"


def infons(marked):
    document = brat2bioc_doc(brat.loads(TEXT, marked))
    return {one.id: dict(one.infons) for one in document.annotations}


plain, noted = infons(MARKED), infons(MARKED + NOTE)
print("without the note:", plain)
print("with the note:   ", noted)
assert plain["T2"]["type"] == "Sign" and noted["T2"]["type"] == "AnnotatorNotes"
for found in (plain, noted):
    assert found["T1"]["type"] == "Sign" and found["T1"]["attributes"] == ""
    assert "Negated" not in str(found), "the attribute's name is kept now"
read = brat.loads(TEXT, MARKED + NOTE)
assert [one.type for one in read.attributes] == ["Negated"]
assert [one.type for one in read.entities] == ["Sign", "Sign"]
PYTHON
