"""Exports that the tools themselves write, and what they make of files written here.

The tools live in environments of their own, which these variables name:

    SMIDGEN_LABEL_STUDIO=ENV/bin/python    # pip install label-studio-sdk==2.1.2
    SMIDGEN_DOCCANO=ENV/bin/python         # pip install --no-deps doccano==1.8.4
                                           # pip install chardet==4.0.0 pyexcel seqeval pandas
    SMIDGEN_ARGILLA=ENV/bin/python         # pip install argilla==2.8.0 requests
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from smidgen.edge_client.formats.annotation import doccano, label_studio
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import ANY, Labels
from tests.edge_client.formats.annotation.files import SPANS, TAGGED_TEXT

pytestmark = pytest.mark.slow
TAGS = ("B-Chemical", "O", "O", "O", "O", "B-Disease", "I-Disease")
CONFIG = (
    '<View><Text name="text" value="$text"/><{kind} name="label" toName="text">'
    '<{one} value="bill"/><{one} value="delivery"/><{one} value="Chemical"/>'
    '<{one} value="Disease"/></{kind}></View>'
)
CONVERT = """
import json, sys
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
config, tasks, out = sys.argv[1:]
interface = LabelInterface(config)
for task in json.load(open(tasks)):
    for one in task.get("predictions", []):
        assert interface.validate_prediction(one), one
for name in ("JSON_MIN", "CSV", "TSV"):
    Converter(config, project_dir=None).convert(tasks, f"{out}/{name}", name, is_dir=False)
"""
IMPORT = """
import json, sys, sysconfig
sys.path.insert(0, sysconfig.get_path("purelib") + "/backend")
from data_import.pipeline.parsers import JSONLParser
print(json.dumps([[row["text"], row["label"]] for row in JSONLParser().parse(sys.argv[1])]))
"""
RECORDS = """
import json, sys, uuid
import argilla
from argilla.records._io import GenericIO
people = [uuid.UUID(int=1), uuid.UUID(int=2)]
def record(text, *responses):
    given = [argilla.Response("topic", value, user_id=person, status=status)
             for person, (value, status) in zip(people, responses)]
    return argilla.Record(id=text, fields={"text": text}, responses=given)
records = [
    record("a", ("bill", "submitted")),
    record("b", ("bill", "submitted"), ("delivery", "submitted")),
    record("c", ("bill", "discarded")),
    record("d", ("bill", "draft"), ("delivery", "submitted")),
    record("e"),
]
json.dump(GenericIO.to_list(records, flatten=True), open(sys.argv[1], "w"))
"""


def run(variable: str, script: str, *arguments: object) -> str:
    """What a script says in a tool's own environment."""
    python = os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{variable} names no environment with the tool; see the module")
    words = [python, "-c", script, *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("kind", ["Choices", "Labels"])
def test_what_label_studio_makes_of_our_predictions_is_read_again(
    tmp_path: Path, kind: str
) -> None:
    proposals = [Proposal("a 📉, twice", label="bill"), Proposal("b", label="delivery")]
    if kind == "Labels":
        proposals = [Proposal(TAGGED_TEXT, spans=tuple(SPANS))]
    tasks = tmp_path / "tasks.json"
    with tasks.open("w") as file, label_studio.writing(file, "smidgen") as write:
        for proposal in proposals:
            write(proposal)
    read = json.loads(tasks.read_text())
    for number, task in enumerate(read, start=1):  # as an annotator accepts them
        result = task["predictions"][0]["result"]
        annotation = {"id": number, "completed_by": 1, "result": result, "was_cancelled": False}
        task |= {"id": number, "annotations": [annotation]}
    tasks.write_text(json.dumps(read))
    config = CONFIG.format(kind=kind, one="Choice" if kind == "Choices" else "Label")
    run("SMIDGEN_LABEL_STUDIO", CONVERT, config, tasks, tmp_path)
    found = {"JSON_MIN": "result.json", "CSV": "result.csv", "TSV": "result.csv"}
    for path in (tasks, *(tmp_path / name / file for name, file in found.items())):
        if kind == "Choices":
            texts = read_file(path, ANY, labelled=True)
            assert texts == [Example(one.text, "", one.label) for one in proposals]
        else:
            (example,) = read_file(
                path, Labels(("Chemical", "Disease"), kind_named("tagging").files), labelled=True
            )
            assert (example.text, example.tags) == (TAGGED_TEXT, TAGS)


def test_doccano_reads_what_is_written_for_it(tmp_path: Path) -> None:
    texts = ["Öl", "shares fell 📉", "a\nb"]
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file, doccano.writing(file, "smidgen") as write:
        for text in texts:
            write(Proposal(text, label="bill", score=0.5))
        write(Proposal(TAGGED_TEXT, spans=tuple(SPANS)))
    expected = [[text, ["bill"]] for text in texts]
    expected.append([TAGGED_TEXT, list(map(list, SPANS))])  # type: ignore[arg-type]
    assert json.loads(run("SMIDGEN_DOCCANO", IMPORT, path)) == expected


def test_only_what_was_submitted_in_argilla_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    run("SMIDGEN_ARGILLA", RECORDS, path)
    expected = [Example("a", "", "bill"), Example("d", "", "delivery")]
    assert read_file(path, ANY, labelled=True) == expected
