"""`smidgen.tag`: the words of texts tagged, and the entities in them."""

from collections.abc import Iterable
from contextlib import closing

from edge_client.api.given import Asked, Place, place_or_none
from edge_client.api.labeller import adapter_or_own, open_labeller
from edge_client.api.predict import found_texts
from edge_client.bases.base import EMBEDDED
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tasks.kinds.tag_answers import TaggedText, taggings
from edge_client.texts.accounting import Accounting


def tag(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: Place = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
) -> list[TaggedText]:
    """Tag the words of texts, and find the entities in them.

        smidgen.tag(["naloxone reverses it"], "adapter")[0].entities

    Args:
        texts: The texts, however long.
        adapter: Exported adapter folder, or one that PEFT itself saved.
        personal: A client's state folder instead: with the adapter of its own, or the shared one,
            whichever finds more on its test texts.
        task: The types of the entities; an exported adapter has its own.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.

    Raises:
        WrongInput: An empty text or something else than a text, no such adapter, one of another
            base, or one that tags nothing.
        Failed: The engine could not do it.
    """
    found = found_texts(texts, has_pairs=False)
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_function("smidgen.tag")
        return [one.text(labeller.task) for one in taggings(labeller, found, Accounting())]
