"""`smidgen coordinator token`: another enrolment token for a run."""

from contextlib import closing

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer
from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.runs import find_run


def token(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Print another enrolment token for a run; it is not shown again.

    Earlier tokens of the run stay valid.
    """
    with closing(open_store(store)) as opened:
        chosen, secret = find_run(opened, run), draw_secret()
        opened.add_token(hash_secret(secret), chosen.run_id)
    answer(f"enrolment token {secret}", {"run_id": chosen.run_id, "token": secret}, as_json)
