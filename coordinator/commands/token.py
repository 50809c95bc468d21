"""`smidgen coordinator token`: another enrolment token for a run."""

import time
from contextlib import closing

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer
from coordinator.storage.keys import draw_secret
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.token_rows import insert_token


def token(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Print another enrolment token, which gives devices the tags of a run; it is not shown again.

    Earlier tokens stay valid.
    """
    with closing(open_store(store)) as opened:
        chosen, secret = find_run(opened, run), draw_secret()
        tags = config_of(chosen).devices.tags
        opened.database.write(insert_token(secret, time.time(), tags=tags)[1])
    answer(f"enrolment token {secret}", {"run_id": chosen.run_id, "token": secret}, as_json)
