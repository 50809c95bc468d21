"""Devices belong to the coordinator; runs choose them by tags.

Every device of an old run is tagged `run=NAME` and the run chooses by that tag, so it goes on
among the same devices. Devices keep their ids, which seeds hang on; where two runs have a device
of one name, the one of the run that is further from its end keeps it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBERED = re.compile(r"(.+)-([2-9]|[1-9][0-9]{1,5})")


@dataclass(frozen=True)
class Run:
    """What is read of an old run."""

    run_id: str
    config: dict[str, Any]
    created_at_s: float
    tag: str
    is_finished: bool


def upgrade() -> None:
    """Move devices and tokens of runs to the coordinator; add what a fleet needs."""
    connection = op.get_bind()
    runs = _runs(connection)
    tokens, devices = _rows(connection, "tokens"), _rows(connection, "devices")
    for name in ("tokens", "devices", "schema_version"):
        op.drop_table(name)
    _create_tables()
    ids = _ids(runs, devices)
    for run in runs:
        _choose_by_tag(connection, run)
        mine = [row for row in devices if row["run_id"] == run.run_id]
        _add_devices(connection, run, mine, ids)
        renamed = {row["device_id"]: ids[run.run_id, row["device_id"]] for row in mine}
        renamed = {old: new for old, new in renamed.items() if old != new}
        if renamed:
            _rename(connection, run.run_id, renamed)
        _add_tokens(connection, run, [row for row in tokens if row["run_id"] == run.run_id])


def _rows(connection: sql.Connection, table: str) -> list[dict[str, Any]]:
    found = connection.execute(sql.text(f"SELECT * FROM {table}")).mappings()
    return [dict(row) for row in found]


def _runs(connection: sql.Connection) -> list[Run]:
    """The runs; a name that two have, as an old store may, gives no tag that tells them apart."""
    ended = sql.text("""SELECT run_id FROM events WHERE payload LIKE '%"event": "Finished"%'""")
    finished = set(connection.execute(ended).scalars())
    order = "SELECT run_id, config, created_at_s FROM runs ORDER BY created_at_s, run_id"
    rows = [(*row[:1], json.loads(row[1]), row[2]) for row in connection.execute(sql.text(order))]
    count = Counter(config["name"] for _, config, _ in rows)
    return [
        Run(
            run_id,
            config,
            created_at_s,
            config["name"] if count[config["name"]] == 1 else run_id,
            run_id in finished,
        )
        for run_id, config, created_at_s in rows
    ]


def _ids(runs: Iterable[Run], devices: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The id of each old (run, device) in the fleet."""
    found: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for run in sorted(runs, key=lambda run: run.is_finished):
        for row in devices:
            if row["run_id"] == run.run_id:
                old = str(row["device_id"])
                new = old if old not in taken else f"{run.run_id}-{old}"
                found[run.run_id, old] = new
                taken.add(new)
    return found


def _choose_by_tag(connection: sql.Connection, run: Run) -> None:
    config = run.config | {"devices": {"tags": {"run": run.tag}}}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    statement = sql.text("UPDATE runs SET config = :config WHERE run_id = :run_id")
    connection.execute(statement, {"config": text, "run_id": run.run_id})


def _add_devices(
    connection: sql.Connection,
    run: Run,
    devices: list[dict[str, Any]],
    ids: dict[tuple[str, str], str],
) -> None:
    table = _light("devices", own_tags=sql.JSON, tags=sql.JSON, facts=sql.JSON)
    for row in devices:
        device_id = ids[run.run_id, row["device_id"]]
        match = NUMBERED.fullmatch(device_id)
        last = connection.execute(sql.text("SELECT coalesce(max(revision), 0) FROM devices"))
        started_at_s = row["last_seen_s"] or row["enrolled_at_s"]
        values = {
            "device_id": device_id,
            "key_sha256": row["key_sha256"],
            "name": device_id,
            "stem": match[1] if match else device_id,
            "number": int(match[2]) if match else 1,
            "own_tags": {},
            "tags": {"run": run.tag},
            "facts": json.loads(row["facts"]) if isinstance(row["facts"], str) else row["facts"],
            "enrolled_at_s": row["enrolled_at_s"],
            "started_at_s": started_at_s,
            "last_seen_s": row["last_seen_s"],
            "revision": last.scalar_one() + 1,
        }
        connection.execute(sql.insert(table).values(**values))
        member = {"run_id": run.run_id, "device_id": device_id, "at_s": started_at_s}
        names = ("run_id", "device_id", "state", "at_s")
        memberships = sql.table("memberships", *map(sql.column, names))
        connection.execute(sql.insert(memberships).values(**member, state="joined"))


def _add_tokens(connection: sql.Connection, run: Run, tokens: list[dict[str, Any]]) -> None:
    table = _light("tokens", tags=sql.JSON)
    for row in tokens:
        values = {
            "token_id": f"t{row['token_sha256'][:10]}",
            "token_sha256": row["token_sha256"],
            "created_at_s": run.created_at_s,
            "used": 0,
            "tags": {"run": run.tag},
        }
        connection.execute(sql.insert(table).values(**values))


def _light(name: str, **typed: Any) -> sql.TableClause:
    """A table by its name, as this revision has just made it."""
    known = sql.Table(name, sql.MetaData(), autoload_with=op.get_bind())
    return sql.table(name, *(sql.column(one.name, typed.get(one.name)) for one in known.columns))


def _rename(connection: sql.Connection, run_id: str, renamed: dict[str, str]) -> None:
    """Give devices their new ids in a run's journal and reports."""
    events = connection.execute(
        sql.text("SELECT seq, payload FROM events WHERE run_id = :run_id"), {"run_id": run_id}
    ).all()
    put = sql.text("UPDATE events SET payload = :payload WHERE run_id = :run_id AND seq = :seq")
    for seq, payload in events:
        event = json.loads(payload)
        if "device_id" in event:
            event["device_id"] = renamed.get(event["device_id"], event["device_id"])
        if "members" in event:
            event["members"] = [[work, renamed.get(one, one)] for work, one in event["members"]]
        text = json.dumps(event, sort_keys=True)
        if text != payload:
            connection.execute(put, {"payload": text, "run_id": run_id, "seq": seq})
    moved = sql.text(
        "UPDATE reports SET device_id = :new WHERE run_id = :run_id AND device_id = :old"
    )
    for old, new in renamed.items():
        connection.execute(moved, {"new": new, "run_id": run_id, "old": old})


def _create_tables() -> None:
    op.create_table(
        "tokens",
        sql.Column("token_id", sql.String, primary_key=True),
        sql.Column("token_sha256", sql.String, nullable=False, unique=True),
        sql.Column("created_at_s", sql.Float, nullable=False),
        sql.Column("expires_at_s", sql.Float),
        sql.Column("uses", sql.Integer),
        sql.Column("used", sql.Integer, nullable=False),
        sql.Column("revoked_at_s", sql.Float),
        sql.Column("tags", sql.JSON, nullable=False),
    )
    op.create_table(
        "devices",
        sql.Column("device_id", sql.String, primary_key=True),
        sql.Column("key_sha256", sql.String, nullable=False, unique=True),
        sql.Column("name", sql.String, nullable=False, unique=True),
        sql.Column("stem", sql.String, nullable=False),
        sql.Column("number", sql.Integer, nullable=False),
        sql.Column("own_tags", sql.JSON, nullable=False),
        sql.Column("tags", sql.JSON, nullable=False),
        sql.Column("facts", sql.JSON, nullable=False),
        sql.Column("token_id", sql.String),
        sql.Column("enrolled_at_s", sql.Float, nullable=False),
        sql.Column("started_at_s", sql.Float, nullable=False),
        sql.Column("last_seen_s", sql.Float),
        sql.Column("revoked_at_s", sql.Float),
        sql.Column("revision", sql.Integer, nullable=False),
    )
    op.create_index("ix_devices_stem_number", "devices", ["stem", "number"])
    op.create_index("ix_devices_revision", "devices", ["revision"])
    op.create_table(
        "memberships",
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), primary_key=True),
        sql.Column("device_id", sql.String, sql.ForeignKey("devices.device_id"), primary_key=True),
        sql.Column("state", sql.String, nullable=False),
        sql.Column("failure", sql.String),
        sql.Column("peak_bytes", sql.Integer),
        sql.Column("at_s", sql.Float, nullable=False),
    )
    op.create_table(
        "orders",
        sql.Column("order_id", sql.Integer, primary_key=True, autoincrement=True),
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), nullable=False),
        sql.Column("kind", sql.String, nullable=False),
        sql.Column("rounds", sql.Integer),
        sql.Column("asked_at_s", sql.Float, nullable=False),
        sql.Column("done_at_s", sql.Float),
        sql.Column("refused", sql.String),
    )
    op.create_table(
        "operators",
        sql.Column("operator_id", sql.String, primary_key=True),
        sql.Column("token_sha256", sql.String, nullable=False, unique=True),
        sql.Column("role", sql.String, nullable=False),
        sql.Column("created_at_s", sql.Float, nullable=False),
        sql.Column("revoked_at_s", sql.Float),
    )
    op.create_table(
        "sessions",
        sql.Column("session_sha256", sql.String, primary_key=True),
        sql.Column(
            "operator_id", sql.String, sql.ForeignKey("operators.operator_id"), nullable=False
        ),
        sql.Column("expires_at_s", sql.Float, nullable=False),
    )
    op.drop_index("ix_reports_run_id", "reports")
    op.create_index("ix_reports_run_id_round_index", "reports", ["run_id", "round_index"])
    op.create_index("ix_reports_device_id", "reports", ["device_id"])
