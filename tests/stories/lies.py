"""A small grammar of lies: what a hostile device answers in place of the truth."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np

from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import decode_update, encode_update
from smidgen.simulation.experiments.hostile import Attack, forged

LIAR = "liar"  # the name of the device that lies
NAN = np.float32(np.nan).tobytes()


def _forged(body: bytes, attack: Attack) -> bytes:
    return encode_update(forged(decode_update(body), attack, seed=1))


UPDATES: Mapping[str, Callable[[bytes], bytes]] = {
    **{f"{one} update": partial(_forged, attack=one) for one in get_args(Attack)},
    "an update with a NaN": lambda body: body[:-4] + NAN,
    "an update that is cut": lambda body: body[:-7],
    "an update of noise": lambda body: bytes(range(256)) * 20,
    "an update of nothing": lambda body: b"",
    "an update with a header of 2^62 bytes": lambda body: (1 << 62).to_bytes(8, "little") + body,
    "another work's update": lambda body: encode_update(
        replace(decode_update(body), work_id="f" * 32)
    ),
}
REPORTS: Mapping[str, Callable[[Report], Report]] = {
    "all texts right": lambda one: replace(one, accuracy=1.0, loss=0.0, num_examples=2**53 - 1),
    "no text right": lambda one: replace(one, accuracy=0.0, loss=3e38, num_examples=2**53 - 1),
    "a loss of 3e38": lambda one: replace(one, loss=3e38),
    "10^9 labelled texts": lambda one: replace(one, labelled=10**9),
    "a failure": lambda one: replace(one, outcome="failed", failure="internal"),
    "a farewell": lambda one: replace(one, outcome="failed", failure="disk", is_leaving=True),
}
LIES = (*UPDATES, *REPORTS)


def told(lie: str, finished: FinishedWork, work: Work) -> FinishedWork:
    """An answer with a lie in it; the truth where the lie is of another kind of work."""
    if lie in UPDATES and finished.update is not None:
        return replace(finished, update=UPDATES[lie](finished.update))
    if lie in REPORTS:
        lied = REPORTS[lie](finished.report)
        return replace(finished, report=lied, update=None if lied.failure else finished.update)
    return finished
