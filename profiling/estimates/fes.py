"""FeS's own cost model of a TX2, as its authors' plotting notebooks have it: a formula, no run.

A batch of 4 texts through all layers takes a fixed number of seconds, computing draws one power and
sending another. Everything made with it is estimated, and says so.
"""

SOURCE = "FeS (MobiCom'23), the constants of its plotting notebooks"
BATCH = 4
TRAIN_S = {"full": 2.0, "bias": 1.0}  # of a batch, all weights trained, or biases alone
READ_S = {"full": 1.0, "bias": 0.5}  # of a batch that is only read
COMPUTE_W, RADIO_W = 12.0, 4.0
RADIO_BYTES_PER_S = 1e6  # ours: theirs is not known


def seconds(trained_forwards: float, read_forwards: float, layers: int, kind: str) -> float:
    """Estimated seconds on a TX2.

    Args:
        trained_forwards: Layer-forwards of training; a batch is 3 of them per text and layer.
        read_forwards: Layer-forwards of reading texts.
        layers: The base's layers.
        kind: `full` or `bias`: what is trained.
    """
    trained = trained_forwards / (3 * layers * BATCH)
    read = read_forwards / (layers * BATCH)
    return trained * TRAIN_S[kind] + read * READ_S[kind]


def kilojoules(computing_s: float, sent_bytes: float) -> float:
    """Estimated energy on a TX2: computing, and sending at 1 MB per second."""
    return (COMPUTE_W * computing_s + RADIO_W * sent_bytes / RADIO_BYTES_PER_S) / 1e3
