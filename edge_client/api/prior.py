"""The prior of an adapter's answers: what it says of texts anyway, whichever they are.

Devices with few kinds of labels leave an adapter lopsided: it says one label of most texts. How
much more a text speaks for a label than texts do is often right still.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_client.api.labeller import Labeller
from edge_client.errors import demand
from edge_client.formats.dialect import Dialect
from edge_client.tasks.kind import kind_of
from edge_client.tasks.kinds.label_answers import answers
from edge_client.texts.accounting import Accounting, tell
from edge_client.texts.examples import every_row
from edge_client.texts.parts import Labels

FEWEST = 8  # texts; fewer say more of themselves than of the adapter


def with_prior(labeller: Labeller, file: Path | None, dialect: Dialect) -> Labeller:
    """The labeller with the prior of a file's texts taken off its answers.

    It helps where the file has about equally many texts of each label, and takes away what is true
    where it has not. Labels in the file are not read.

    Args:
        labeller: Whose answers they are.
        file: Texts of the kind that will be labelled; None leaves the labeller as it is.
        dialect: How the file is written down.

    Raises:
        WrongInput: No such file, or fewer than 8 texts in it.
    """
    if file is None:
        return labeller
    kind = kind_of(labeller.task)
    demand(kind.is_one_label, f"--prior is for labels of texts; the task is of kind {kind.name}")
    demand(file.is_file(), f"--prior {file}: there is no such file")
    plain = replace(labeller, prior=())
    accounting, labels = Accounting(), Labels(labeller.task.labels, labeller.task.files)
    texts = every_row(file, labels, False, accounting.notes, dialect)
    total, count = np.zeros(len(labeller.task.labels)), 0
    for answer in answers(plain, texts, accounting):
        total, count = total + answer.log_probabilities, count + 1
    tell(f"--prior {file}", accounting)
    said = f"--prior {file}: {FEWEST} texts or more are expected, of all labels; it has {count}"
    demand(count >= FEWEST, said)
    return replace(labeller, prior=tuple((total / count).tolist()))
