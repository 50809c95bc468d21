"""Small files in the form in which annotation tools write them, with texts made up here.

Each is of three texts: of the first one person said `bill`, of the second two people said different
things or one person two things, and of the third nobody has said anything that counts.
"""

import json
from typing import Any


def _studio(number: int, text: str, *choices: str, is_cancelled: bool = False) -> dict[str, Any]:
    result = {"id": "r", "type": "choices", "from_name": "topic", "to_name": "text"}
    annotations = [
        {
            "id": place,
            "completed_by": 1,
            "result": [] if is_cancelled else [{**result, "value": {"choices": [one]}}],
            "was_cancelled": is_cancelled,
            "lead_time": 3.1,
        }
        for place, one in enumerate(choices)
    ]
    return {"id": number, "annotations": annotations, "drafts": [], "data": {"text": text}}


def _min(number: int, text: str, topic: str = "") -> dict[str, Any]:
    answer = {"topic": topic} if topic else {}
    last = {"annotator": 1, "annotation_id": 7, "created_at": "", "lead_time": 1.5}
    return {"text": text, "id": number, **answer, **(last if topic else dict.fromkeys(last))}


def _argilla(number: int, text: str, *values: str, status: str = "submitted") -> dict[str, Any]:
    given = {"values": list(values), "users": ["u"] * len(values)}
    return {
        "id": str(number),
        "text": text,
        "status": "pending",
        "topic.responses": given["values"],
        "topic.responses.users": given["users"],
        "topic.responses.status": [status] * len(values),
        "topic.suggestion": "delivery",
    }


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _prodigy(number: int, text: str, answer: str, *accept: str) -> dict[str, Any]:
    options = [{"id": "bill", "text": "Bill"}, {"id": "delivery", "text": "Delivery"}]
    row = {"text": text, "_input_hash": number, "_task_hash": number, "options": options}
    return row | {"accept": list(accept), "answer": answer}


A, B, C = "charged, twice", 'late\n"again"', "a 📉 note"
HEADER = '"annotation_id","annotator","id","lead_time","text","topic"\n'
LABELLED = {  # name: what the tool's export is called in messages, and what is in it
    "studio.json": (
        "a Label Studio export (JSON)",
        json.dumps(
            [
                _studio(1, A, "bill"),
                _studio(2, B, "bill", "delivery"),
                _studio(3, C, "bill", is_cancelled=True),
            ]
        ),
    ),
    "min.json": (
        "a Label Studio export (JSON_MIN)",
        json.dumps(
            [_min(1, A, "bill"), _min(2, B, "bill"), _min(2, B, "delivery"), _min(3, C)], indent=1
        ),
    ),
    "studio.csv": (
        "a Label Studio export (CSV, TSV)",
        f'{HEADER}1,"1",1,3.1,"{A}","bill"\n2,"1",2,3.1,"late\n""again""","bill"\n'
        f'3,"1",2,3.1,"late\n""again""","delivery"\n"","",3,"","{C}",""\n',
    ),
    "tabs.csv": (
        "a Label Studio export (CSV, TSV)",
        HEADER.replace(",", "\t")
        + f'1\t"1"\t1\t3.1\t"{A}"\t"bill"\n2\t"1"\t2\t3.1\t"late\n""again"""\t'
        + f'"{{""choices"":[""bill"",""delivery""]}}"\n""\t""\t3\t""\t"{C}"\t""\n',
    ),
    "doccano.jsonl": (
        "a doccano export",
        _lines(
            {"id": 1, "text": A, "label": ["bill"], "Comments": []},
            {"id": 2, "text": B, "label": ["bill", "delivery"], "Comments": []},
            {"id": 3, "text": C, "label": [], "Comments": []},
        ),
    ),
    "prodigy.jsonl": (
        "a Prodigy export",
        _lines(
            _prodigy(1, A, "accept", "bill"),
            _prodigy(2, B, "accept", "bill", "delivery"),
            _prodigy(3, C, "reject", "bill"),
        ),
    ),
    "argilla.json": (
        "an Argilla export",
        json.dumps(
            [
                _argilla(1, A, "bill"),
                _argilla(2, B, "bill", "delivery"),
                _argilla(3, C, "bill", status="discarded"),
            ]
        ),
    ),
}

TAGGED_TEXT = "Naloxone (twice) for heart failure"
SPANS: list[tuple[int, int, str]] = [(0, 8, "Chemical"), (21, 34, "Disease")]


def _regions() -> list[dict[str, Any]]:
    return [
        {"start": start, "end": end, "text": TAGGED_TEXT[start:end], "labels": [label]}
        for start, end, label in SPANS
    ]


def _named(start: str, end: str) -> list[dict[str, Any]]:
    return [dict(zip((start, end, "label"), span, strict=True)) for span in SPANS]


_RESULTS = [
    {"from_name": "label", "to_name": "text", "type": "labels", "value": one} for one in _regions()
]
TAGGED = {  # one text with two entities
    "studio.json": json.dumps(
        [{"id": 1, "data": {"text": TAGGED_TEXT}, "annotations": [{"result": _RESULTS}]}]
    ),
    "min.json": json.dumps(
        [
            {"text": TAGGED_TEXT, "id": 1, "label": _regions()}
            | {"annotator": 1, "annotation_id": 2, "lead_time": 1.5}
        ]
    ),
    "studio.csv": HEADER.replace("topic", "label")
    + f'1,"1",1,3.1,"{TAGGED_TEXT}","{json.dumps(_regions()).replace(chr(34), chr(34) * 2)}"\n',
    "doccano.jsonl": _lines({"id": 1, "text": TAGGED_TEXT, "label": SPANS, "Comments": []}),
    "relations.jsonl": _lines(
        {"id": 1, "text": TAGGED_TEXT, "relations": [], "Comments": []}
        | {"entities": _named("start_offset", "end_offset")}
    ),
    "prodigy.jsonl": _lines(
        {"text": TAGGED_TEXT, "spans": _named("start", "end"), "answer": "accept"}
        | {"_input_hash": 1, "tokens": [{"text": "Naloxone", "start": 0, "end": 8, "id": 0}]}
    ),
    "argilla.json": json.dumps(
        [
            {"id": "1", "fields": {"text": TAGGED_TEXT}, "status": "completed", "suggestions": {}}
            | {"responses": {"entities": [{"value": _named("start", "end"), "user_id": "u"}]}}
        ]
    ),
}
