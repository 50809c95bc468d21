#!/usr/bin/env bash
# argilla 2.8.0: `records.to_json` and `to_list` write a response without its status.
# A response that was discarded, and a draft that was never submitted, are exported exactly as a
# submitted one; only `to_list(flatten=True)` and `to_datasets` have a column for it. Whoever reads
# the file back with `from_json` gets three responses alike.
#
# Seen:
#   nested {"topic": [{"value": "bill", "user_id": "00000000-0000-0000-0000-000000000001"}]}
#   nested {"topic": [{"value": "bill", "user_id": "00000000-0000-0000-0000-000000000001"}]}
#   nested {"topic": [{"value": "bill", "user_id": "00000000-0000-0000-0000-000000000001"}]}
#   flat ["submitted"] ["discarded"] ["draft"]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet argilla==2.8.0 requests==2.32.5
cd "$folder"
cat > show.py <<'PYTHON'
import json
import uuid

import argilla
from argilla.records._io import GenericIO, JsonIO

person = uuid.UUID(int=1)
records = [
    argilla.Record(
        id=status,
        fields={"text": "charged twice"},
        responses=[argilla.Response("topic", "bill", user_id=person, status=status)],
    )
    for status in ("submitted", "discarded", "draft")
]
JsonIO.to_json(records, "out.json")  # what `dataset.records.to_json` calls
for record in json.load(open("out.json")):
    print("nested", json.dumps(record["responses"]))
flat = GenericIO.to_list(records, flatten=True)
print("flat", *(json.dumps(record["topic.responses.status"]) for record in flat))
PYTHON
seen=$("$folder/env/bin/python" show.py 2> /dev/null)
echo "$seen"
one='nested {"topic": [{"value": "bill", "user_id": "00000000-0000-0000-0000-000000000001"}]}'
test "$seen" = "$one
$one
$one
flat [\"submitted\"] [\"discarded\"] [\"draft\"]"
