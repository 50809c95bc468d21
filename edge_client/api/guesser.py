"""`smidgen.fill`: masked words of texts guessed by a base, with or without an adapter."""

from collections.abc import Iterable
from contextlib import closing

from edge_client.api.given import Asked, Place, place_or_none
from edge_client.api.labeller import adapter_or_own, open_labeller
from edge_client.api.predict import found_texts
from edge_client.bases.base import EMBEDDED
from edge_client.errors import demand
from edge_client.planning.cuda.accelerator import CPU
from edge_client.planning.sizes import AUTO
from edge_client.tasks.kinds.guesses import TOP, FilledText, check_top, guessings
from edge_client.texts.accounting import Accounting


def fill(
    texts: Iterable[str],
    adapter: Place | None = None,
    *,
    personal: Place | None = None,
    task: Asked | None = None,
    base: Place = EMBEDDED,
    engine: str = AUTO,
    device: str = CPU,
    memory_budget: str = AUTO,
    top: int = TOP,
) -> list[FilledText]:
    """Guess what stands in the `[MASK]`s of texts; of texts without one, tell the perplexity.

        smidgen.fill(["rain at [MASK] ."], "adapter")[0].guesses

    Args:
        texts: The texts. Of a long one the first tokens are read.
        adapter: Exported adapter folder, or one that PEFT itself saved; None: the base alone.
        personal: A client's state folder instead: with the adapter of its own, or the shared one,
            whichever has the lower perplexity on its test texts.
        task: A task that asks for masked words; an exported adapter has its own.
        base: Folder, hub name or `embedded`.
        engine: `auto`, `torch` or `onnx`.
        device: `cpu`, or `cuda` for the torch engine on a CUDA device.
        memory_budget: Such as `512M`; `auto`: 60 % of what is available now.
        top: Guesses for each mask.

    Raises:
        WrongInput: An empty text, something else than a text, or one with a mask too far behind, no
            such adapter, one of another base, or one for something else.
        Failed: The engine could not do it.
    """
    check_top(top)
    found, accounting = found_texts(texts, has_pairs=False), Accounting()
    folder = adapter_or_own(place_or_none(adapter), place_or_none(personal))
    labeller = open_labeller(folder, task, str(base), engine, memory_budget, device)
    with closing(labeller.engine):
        labeller.check_function("smidgen.fill")
        told = [one.told for one in guessings(labeller, found, accounting, top)]
    demand(not accounting.left_out, f"texts: {accounting}")
    return told
