#!/usr/bin/env bash
# label-studio-sdk 2.1.2, Converter, export JSON_MIN.
# Imported data has a column `label` (an old label, say) and the control is called `label` too, as in
# Label Studio's own templates. JSON_MIN writes the answer into the same key, so that a task whose
# annotation is empty, or that nobody has annotated, is exported with the imported value where an
# answer stands elsewhere. CSV renames the imported column to `_data_label`; JSON_MIN does not.
#
# Seen:
#   [["a", "bill", 1], ["b", "old", 2], ["c", "old", null]]     text, label, annotation_id
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet label-studio-sdk==2.1.2
cd "$folder"
cat > show.py <<'PYTHON'
import json
from label_studio_sdk.converter import Converter

CONFIG = """<View><Text name="text" value="$text"/><Choices name="label" toName="text">
<Choice value="bill"/><Choice value="delivery"/></Choices></View>"""


def task(number, text, annotations):
    return {"id": number, "data": {"text": text, "label": "old"}, "annotations": annotations}


chosen = {"type": "choices", "from_name": "label", "to_name": "text", "value": {"choices": ["bill"]}}
tasks = [
    task(1, "a", [{"id": 1, "completed_by": 1, "result": [chosen]}]),
    task(2, "b", [{"id": 2, "completed_by": 1, "result": []}]),
    task(3, "c", []),
]
json.dump(tasks, open("tasks.json", "w"))
Converter(CONFIG, project_dir=None).convert("tasks.json", "out", "JSON_MIN", is_dir=False)
rows = json.load(open("out/result.json"))
print(json.dumps([[row["text"], row["label"], row["annotation_id"]] for row in rows]))
PYTHON
seen=$("$folder/env/bin/python" show.py 2> /dev/null)
echo "$seen"
test "$seen" = '[["a", "bill", 1], ["b", "old", 2], ["c", "old", null]]'
