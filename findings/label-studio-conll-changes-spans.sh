#!/usr/bin/env bash
# label-studio-sdk 2.1.2, Converter, export CONLL2003.
# Four things that JSON keeps and the CoNLL file changes without a word:
#   1. a span that ends within a token is stretched over the token ("Bob" of "Bob’s" in the text);
#   2. of a span within another one the inner is dropped;
#   3. a task that nobody has annotated is written like one without entities, all O;
#   4. a label with a space in it is written as it is, so that its line has a column more.
#
# Seen:
#   Bob’s -X- _ B-PER | left -X- _ O
#   New -X- _ B-LOC | York -X- _ I-LOC | Times -X- _ I-LOC
#   nobody -X- _ O | yet -X- _ O
#   Rome -X- _ B-PLACE OF BIRTH
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet label-studio-sdk==2.1.2
cd "$folder"
cat > show.py <<'PYTHON'
import json
from label_studio_sdk.converter import Converter

CONFIG = """<View><Labels name="label" toName="text"><Label value="PER"/><Label value="LOC"/>
<Label value="ORG"/><Label value="PLACE OF BIRTH"/></Labels><Text name="text" value="$text"/></View>"""


def span(start, end, label):
    value = {"start": start, "end": end, "labels": [label]}
    return {"type": "labels", "from_name": "label", "to_name": "text", "value": value}


def task(number, text, *spans):
    annotations = [{"id": number, "completed_by": 1, "result": list(spans)}] if spans else []
    return {"id": number, "data": {"text": text}, "annotations": annotations}


tasks = [
    task(1, "Bob\u2019s left", span(0, 3, "PER")),
    task(2, "New York Times", span(0, 14, "LOC"), span(4, 8, "ORG")),
    task(3, "nobody yet"),
    task(4, "Rome", span(0, 4, "PLACE OF BIRTH")),
]
json.dump(tasks, open("tasks.json", "w"))
Converter(CONFIG, project_dir=None).convert("tasks.json", "out", "CONLL2003", is_dir=False)
body = open("out/result.conll", encoding="utf-8").read().removeprefix("-DOCSTART- -X- O\n")
for block in body.strip().split("\n\n"):
    print(" | ".join(block.splitlines()))
PYTHON
seen=$(PYTHONIOENCODING=utf-8 "$folder/env/bin/python" show.py 2> /dev/null)
echo "$seen"
test "$seen" = 'Bob’s -X- _ B-PER | left -X- _ O
New -X- _ B-LOC | York -X- _ I-LOC | Times -X- _ I-LOC
nobody -X- _ O | yet -X- _ O
Rome -X- _ B-PLACE OF BIRTH'
