"""The peer Flower: its environment.

flwr needs older libraries than ours, so `scripts/flwr_env` makes an environment for it and its Ray.
"""

from pathlib import Path

from smidgen.profiling.instruments.environment import folder_of, why_missing

FLWR = "flwr"
VARIABLE = "SMIDGEN_FLWR"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",  # Ray listens on every interface; see RAY_AUTH_TOKEN
}


def environment() -> Path:
    return folder_of(FLWR, VARIABLE)


def missing() -> str | None:
    return why_missing(environment(), "scripts/flwr_env")
