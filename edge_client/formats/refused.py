"""Formats that are known here and not read: each is named, with the export that is read."""

import re

from edge_client.formats.arrow import SPLITS, STATE
from edge_client.formats.dialect import named
from edge_client.formats.reader import Head

COLUMNS = "export CoNLL (a word and its tag on each line) instead"
MARKS = (
    (r"\s*#FORMAT=WebAnno TSV", "WebAnno TSV", COLUMNS + ", such as CoNLL 2002"),
    (r"#\s*webanno\.\w", "WebAnno TSV", COLUMNS + ", such as CoNLL 2002"),
    (r"\s*TOKEN\tNE-\w+", "HIPE-2022 TSV", "keep TOKEN and one column NE-, as .conll"),
    (r"\s*(?:<\?xml[^>]*>\s*)?<(?:xmi:XMI|cas:)", "UIMA CAS XMI", COLUMNS),
    (
        r'\s*\{\s*"(?:%(?:TYPES|FEATURE_STRUCTURES|VIEWS|HEADER)|_context)"',
        "UIMA CAS JSON",
        COLUMNS,
    ),
    (r"FEA1", "a Feather file of version 1", "save it as version 2, or as Parquet"),
    (r"PK\x03\x04", "a zip archive (or a spreadsheet)", "unpack it, or save it as CSV"),
)


def refused(head: Head) -> str:
    """Why a file is not read, in words; empty if nothing is known against it."""
    if head.path and (head.path / SPLITS).is_file():
        names = sorted(one.name for one in head.path.iterdir() if (one / STATE).is_file())
        return f"several splits that datasets saved: {named(names)}; give the folder of one of them"
    found = next(((name, help_) for mark, name, help_ in MARKS if re.match(mark, head.text)), None)
    return f"this is {found[0]}, which is not read here: {found[1]}" if found else ""
