"""What papers print about training on boards; nothing of it was measured or estimated here.

AUG-FedPrompt's table 4 stands as it is printed, with its marks. `OOM (9.8)` is a step that ran out
of the board's memory and took 9.8 GB on the authors' server (note 3 of the paper).
"""

from dataclasses import dataclass

AUG_FEDPROMPT = "AUG-FedPrompt (EuroMLSys'23, arXiv:2212.00192), table 4"
SETTING = "NVIDIA TX2 with 8 GB, all weights trained, batch 4"
GB = 1e9  # the paper does not say whether its GB are steps of 1000 or 1024
# Rows as printed, but `OOM (9.8)` is 9.8 here; `OUT_OF_MEMORY` says of which models.
TABLE_4 = """
             | ALBERT-base | BERT-base | BERT-large | RoBERTa-base | RoBERTa-large
Memory (GB)  | 3.7         | 5.4       | 9.8        | 5.8          | 10.4
Latency (s)  | 1.4         | 1.9       | ~7.8       | 2.1          | ~8.1
Param. (M)   | 11.7        | 109.5     | 334.9      | 124.6        | 355.3
"""
OUT_OF_MEMORY = ("BERT-large", "RoBERTa-large")


@dataclass(frozen=True)
class Published:
    """A base's column of the table.

    Attributes:
        base: The name of its shape here.
        memory_gb: Peak memory in GB, as printed.
        is_out_of_memory: Whether the board ran out of it; the figure is then a server's.
        latency: Seconds per batch, as printed.
        parameters_m: Millions of parameters, as printed.
    """

    base: str
    memory_gb: str
    is_out_of_memory: bool
    latency: str
    parameters_m: str

    @property
    def memory(self) -> str:
        """As the paper prints it."""
        return f"OOM ({self.memory_gb})" if self.is_out_of_memory else self.memory_gb


def aug_fedprompt() -> dict[str, Published]:
    """Base -> its column, in the paper's order; the keys are the names of our shapes."""
    lines = [[cell.strip() for cell in line.split("|")] for line in TABLE_4.strip("\n").split("\n")]
    (_, *names), (_, *memory), (_, *latency), (_, *parameters) = lines
    columns = zip(names, memory, latency, parameters, strict=True)
    return {
        name.lower(): Published(name.lower(), gb, name in OUT_OF_MEMORY, seconds, millions)
        for name, gb, seconds, millions in columns
    }
