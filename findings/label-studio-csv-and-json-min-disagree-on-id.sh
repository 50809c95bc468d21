#!/usr/bin/env bash
# label-studio-sdk 2.1.2, Converter: what `id` means depends on the export.
# Imported data has an `id` of its own, such as the document's. In JSON_MIN the task's id replaces it
# and the document's is lost; in CSV the imported one replaces the task's. So rows of one `id` in a
# CSV are not the annotations of one task: here two tasks, each annotated once, look like one task
# that two people answered differently.
#
# Seen:
#   JSON_MIN [[11, "a", "bill"], [12, "b", "delivery"]]
#   CSV [["note-7", "a", "bill"], ["note-7", "b", "delivery"]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet label-studio-sdk==2.1.2
cd "$folder"
cat > show.py <<'PYTHON'
import csv
import json
from label_studio_sdk.converter import Converter

CONFIG = """<View><Text name="text" value="$text"/><Choices name="topic" toName="text">
<Choice value="bill"/><Choice value="delivery"/></Choices></View>"""


def task(number, text, choice):
    value = {"choices": [choice]}
    chosen = {"type": "choices", "from_name": "topic", "to_name": "text", "value": value}
    annotation = {"id": number, "completed_by": 1, "result": [chosen]}
    return {"id": number, "data": {"text": text, "id": "note-7"}, "annotations": [annotation]}


json.dump([task(11, "a", "bill"), task(12, "b", "delivery")], open("tasks.json", "w"))
converter = Converter(CONFIG, project_dir=None)
converter.convert("tasks.json", "min", "JSON_MIN", is_dir=False)
converter.convert("tasks.json", "out.csv", "CSV", is_dir=False)
found = {"JSON_MIN": json.load(open("min/result.json")), "CSV": csv.DictReader(open("out.csv"))}
for name, rows in found.items():
    print(name, json.dumps([[row["id"], row["text"], row["topic"]] for row in rows]))
PYTHON
seen=$("$folder/env/bin/python" show.py 2> /dev/null)
echo "$seen"
test "$seen" = 'JSON_MIN [[11, "a", "bill"], [12, "b", "delivery"]]
CSV [["note-7", "a", "bill"], ["note-7", "b", "delivery"]]'
