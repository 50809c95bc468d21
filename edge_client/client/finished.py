"""The finished run's adapter as a folder on the device, for `smidgen client predict`."""

import logging
from datetime import date
from pathlib import Path

from edge_client.adapters.card import Card, licence_of
from edge_client.adapters.peft_folder import Exported, write_peft_folder
from edge_client.client.settings import Settings
from edge_client.errors import Failed, WrongInput
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import Over

log = logging.getLogger(__name__)


def take_home(folder: Path, terms: Terms, settings: Settings, over: Over, body: bytes) -> str:
    """Write the finished adapter; the folder, or nothing where that cannot be done.

    Args:
        folder: Made if it is not there; an earlier adapter in it is replaced.
        terms: The run's.
        settings: What the client was started with.
        over: What the coordinator said of the run's end.
        body: The adapter, a safetensors file.
    """
    base = settings.base
    exported = Exported(
        adapter=terms.adapter_spec,
        base_name=base.peft_name,
        base_id=base.base_id,
        architecture=base.architecture,
        task=terms.task,
    )
    card = Card(
        rounds=over.rounds,
        devices=over.devices,
        accuracies=over.accuracies,
        date=date.today().isoformat(),
        version=settings.version,
        licence=licence_of(base),
    )
    try:
        write_peft_folder(folder, exported, body, card)
    except (Failed, WrongInput, OSError) as error:
        log.error("the finished adapter cannot be written to %s: %s", folder, error)
        return ""
    log.info("run %s is finished; its adapter is in %s", terms.run_name, folder)
    return str(folder)
