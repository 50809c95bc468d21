"""The coordinator as `serve` serves it, its page included."""

from tests.coordinator.page.conftest import start as start
