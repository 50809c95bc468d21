#!/usr/bin/env bash
# doccano 1.8.4 (with chardet 4.0.0, which it pins), import of JSON lines with the preset encoding,
# "Auto": the encoding of a file is guessed by chardet, although JSON is UTF-8. Short files with an
# emoji or one umlaut are decoded as Windows code pages; a wrong text is imported and no error is
# reported. The same rows written in ASCII (\uXXXX) are read rightly.
#
# Seen:
#   UTF-8 "\u00d6l" -> "\u00c3\u2013l", 0 errors
#   UTF-8 "shares fell \ud83d\udcc9" -> "shares fell \u011f\u0178\u201c\u2030", 0 errors
#   ASCII "\u00d6l" -> "\u00d6l", 0 errors
#   ASCII "shares fell \ud83d\udcc9" -> "shares fell \ud83d\udcc9", 0 errors
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
# All of doccano is a server with a hundred packages; its parsers need these alone.
"$folder/env/bin/pip" install --quiet --no-deps doccano==1.8.4
"$folder/env/bin/pip" install --quiet chardet==4.0.0 pyexcel==0.7.6 seqeval==1.2.2 pandas
cd "$folder"
cat > show.py <<'PYTHON'
import json
import pathlib
import sys
import sysconfig

sys.path.insert(0, f"{sysconfig.get_path('purelib')}/backend")
from data_import.pipeline.parsers import JSONLParser

path = pathlib.Path("texts.jsonl")
for name, is_ascii in (("UTF-8", False), ("ASCII", True)):
    for text in ("\u00d6l", "shares fell \U0001f4c9"):
        row = json.dumps({"text": text, "label": ["a"]}, ensure_ascii=is_ascii)
        path.write_text(row + "\n", encoding="utf-8")
        parser = JSONLParser()
        (read,) = parser.parse(str(path))
        print(f"{name} {json.dumps(text)} -> {json.dumps(read['text'])}, {len(parser.errors)} errors")
PYTHON
seen=$("$folder/env/bin/python" show.py 2> /dev/null)
echo "$seen"
test "$seen" = 'UTF-8 "\u00d6l" -> "\u00c3\u2013l", 0 errors
UTF-8 "shares fell \ud83d\udcc9" -> "shares fell \u011f\u0178\u201c\u2030", 0 errors
ASCII "\u00d6l" -> "\u00d6l", 0 errors
ASCII "shares fell \ud83d\udcc9" -> "shares fell \ud83d\udcc9", 0 errors'
