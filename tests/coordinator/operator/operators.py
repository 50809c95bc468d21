"""Somebody with a token, who asks the operator's API of a coordinator under test."""

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from smidgen.coordinator.storage.credentials import Role, add_operator
from smidgen.coordinator.storage.store import Store

PREFIX = "/v1/operator"


@dataclass
class Person:
    """Somebody.

    Attributes:
        http: A client with the coordinator's address; shared, not closed here.
        token: Their token.
    """

    http: httpx.Client
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(PREFIX + path, headers=self.headers, **options)

    def tell(self, path: str, body: Any = None, method: str = "POST") -> httpx.Response:
        headers = self.headers | {"Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        return self.http.request(method, PREFIX + path, headers=headers, content=content)

    def get(self, path: str, **options: Any) -> Any:
        """What is told; the asking must be allowed."""
        response = self.ask(path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any = None, method: str = "POST") -> Any:
        """What is told of a change, which must be allowed."""
        response = self.tell(path, body, method)
        assert response.is_success, response.text
        return response.json()


def person(http: httpx.Client, store: Store, role: Role = "operator") -> Person:
    return Person(http, add_operator(store, role, time.time()))
