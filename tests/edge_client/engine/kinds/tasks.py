"""Tasks without labels, masked words and tags, and texts for them."""

from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example

MLM = Task("notes", kind="mlm", masking=Masking(0.3))
WHOLE = Task("notes", kind="mlm", masking=Masking(0.3, whole_words=True))
TAGGING = Task("home", ("Place", "Time"), kind="tagging")


def _tagged(*pairs: str) -> Example:
    words, tags = zip(*(pair.split("/") for pair in pairs), strict=True)
    return Example(" ".join(words), words=words, tags=tags)


TAGGED = [
    _tagged("the/O", "front/B-Place", "door/I-Place", "opened/O"),
    _tagged("storm/O"),
    _tagged(
        *"dinner/O with/O grandma/O at/O seven/B-Time , bring/O cake/O".replace(",", ",/O").split()
    ),
    _tagged("gate/B-Place", "camera/O", "at/O", "noon/B-Time"),
    _tagged("take/O", "the/O", "pills/O", "this/B-Time", "noon/I-Time", "at/O", "home/B-Place"),
]
# By name, whose order lets each engine meet both kinds where every second one is run.
CASES = {
    "mlm lora:4": (MLM, "lora:4"),
    "tagging head": (TAGGING, "head"),
    "tagging lora:4+head": (TAGGING, "lora:4+head"),
    "whole words prompt:4": (WHOLE, "prompt:4"),
    "tagging prompt:4+head": (TAGGING, "prompt:4+head"),
    "mlm bias/top1": (MLM, "bias/top1"),
}
