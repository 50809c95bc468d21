"""Routes of the operator's API on who is let in: tokens of devices, operators and viewers."""

import time
from dataclasses import asdict

from fastapi import APIRouter

from coordinator.operator.asking import After, Limit, page
from coordinator.operator.fleet_schemas import (
    CreatedOperator,
    CreatedToken,
    NewOperator,
    NewToken,
    Operator,
    Operators,
    Token,
    Tokens,
)
from coordinator.operator.told import Told, token_told
from coordinator.rounds.admission import Refusal
from coordinator.serving.service import Service
from coordinator.storage import operators as people
from coordinator.storage.errors import StoreError
from coordinator.storage.keys import draw_secret
from coordinator.storage.rows import tokens as token_rows
from edge_client.errors import WrongInput
from edge_client.wire.fleet import check_tags


def add_token_routes(viewer: APIRouter, operator: APIRouter, service: Service) -> None:
    """Add the routes on what lets devices enrol."""
    database = service.store.database

    @viewer.get("/tokens", response_model=Tokens, tags=["access"])
    def tokens(limit: Limit = 50, after: After = None) -> Told:
        """Enrolment tokens, the newest first; the secrets are nowhere."""
        now_s, all_of_them = time.time(), token_rows.tokens(database)[::-1]
        found, following = page(all_of_them, lambda one: one.token_id, after, limit)
        return {"tokens": [token_told(one, now_s) for one in found], "next": following}

    @operator.post("/tokens", status_code=201, response_model=CreatedToken, tags=["access"])
    def new(asked: NewToken) -> Told:
        """Make an enrolment token; its secret is not shown again."""
        try:
            check_tags(asked.tags)
        except WrongInput as error:
            raise Refusal(422, str(error)) from error
        secret, now_s = draw_secret(), time.time()
        ends_at_s = None if asked.expires_in_s is None else now_s + asked.expires_in_s
        token_id, added = token_rows.insert_token(secret, now_s, asked.uses, ends_at_s, asked.tags)
        database.write(added)
        return token_told(find(token_id), now_s) | {"token": secret}

    @operator.post("/tokens/{token_id}/revoke", response_model=Token, tags=["access"])
    def revoke(token_id: str) -> Told:
        """Let nobody enrol with a token any more; devices that came with it stay."""
        token_rows.revoke(database, token_id, time.time())
        return token_told(find(token_id), time.time())

    def find(token_id: str) -> token_rows.Token:
        for token in token_rows.tokens(database):
            if token.token_id == token_id:
                return token
        raise Refusal(404, f"no token {token_id[:64]!r}")


def add_people_routes(operator: APIRouter, service: Service) -> None:
    """Add the routes on operators and viewers; a viewer may ask none of them."""
    store = service.store

    @operator.get("/operators", response_model=Operators, tags=["access"])
    def operators(limit: Limit = 50, after: After = None) -> Told:
        """Who may look or change, the newest first; those that were revoked too."""
        found, following = page(people.operators(store), lambda one: one.operator_id, after, limit)
        return {"operators": [asdict(one) for one in found], "next": following}

    @operator.post("/operators", status_code=201, response_model=CreatedOperator, tags=["access"])
    def new(asked: NewOperator) -> Told:
        """Let somebody in; their token is not shown again."""
        token = people.add_operator(store, asked.role, time.time())
        found = people.operator_of_token(store, token)
        assert found is not None  # it was added a moment ago
        return asdict(found) | {"token": token}

    @operator.post("/operators/{operator_id}/revoke", response_model=Operator, tags=["access"])
    def revoke(operator_id: str) -> Told:
        """Let an operator's or a viewer's token count no longer, and end their sessions."""
        try:
            return asdict(people.revoke_operator(store, operator_id, time.time()))
        except StoreError as error:
            raise Refusal(404, f"no operator {operator_id[:64]!r}") from error
