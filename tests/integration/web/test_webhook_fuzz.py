"""Webhooks with unexpected content and a valid signature: no failure of the server, and no growth.

Because the signature is valid, all of the parsing and the rows behind it are reached. All values are drawn from one
seed. `tests/unit/k8s_adapters/test_identity.py` does the same for tokens of Pods.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.database import Database
from tests.integration.models.webhook_rows import add_pool
from tests.integration.web.test_webhooks import Stage, on, payload
from web.intake import batches, webhooks

AT_ONCE = 50
WILD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "a\0b",
    "\ud800",
    "\u202e",
    "9" * 5000,
    "A" * 70_000,
    "2026-11-20T12:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59+23:59",
    "2026-13-40",
    "'; DROP TABLE jobs --",
    "acme/app/x",
    "/",
    "..",
    "queued",
    "completed",
    "in_progress",
    "waiting",
    [],
    [[]],
    [None],
    ["linux"] * 500,
    {},
    {"": {}},
    {"id": 1},
)
EVENTS = ("workflow_job",) * 8 + ("installation", "repository", "organization", "installation_repositories")
ACTIONS = ("queued", "in_progress", "completed", "waiting", "created", "deleted", "renamed", "suspend", "added")


@pytest.fixture(autouse=True)
def _patient_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an answer take as long as a busy machine needs."""
    monkeypatch.setattr(webhooks, "ANSWER_WITHIN", 120.0)
    monkeypatch.setattr(batches, "LOCK_MS", 60_000)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return every place of a document, as its container and its key, without recursion because some are deep."""
    found: list[tuple[Any, Any]] = []
    nodes = [document]
    while nodes:
        node = nodes.pop()
        keys: Any = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        found += [(node, key) for key in keys]
        nodes += [node[key] for key in keys]
    return found


def change_document(dice: random.Random, document: dict[str, Any]) -> bytes:
    """Return a document with up to four places changed, moved or removed."""
    for _ in range(dice.randint(1, 4)):
        container, key = dice.choice(places(document) or [(document, "action")])
        match dice.randrange(5):
            case 0 if isinstance(container, dict):
                container.pop(key, None)
            case 1:
                container[key] = {"nested": container[key]} if key in container or isinstance(container, list) else {}
            case 2:
                container[key] = json.loads("[" * 200 + "]" * 200)
            case _:
                container[key] = copy.deepcopy(dice.choice(WILD))
    return json.dumps(document).encode()


def change_bytes(dice: random.Random, body: bytes) -> bytes:
    """Return a body with some of its bytes changed, removed, repeated or cut off."""
    changed = bytearray(body)
    for _ in range(dice.randint(1, 6)):
        if not changed:
            break
        at = dice.randrange(len(changed))
        match dice.randrange(4):
            case 0:
                changed[at] = dice.randrange(256)
            case 1:
                del changed[at : at + dice.randint(1, 20)]
            case 2:
                changed[at:at] = changed[at : at + 30]
            case _:
                del changed[at:]
    return bytes(changed)


def mutated(dice: random.Random) -> tuple[str, bytes]:
    """Return an event's name and the body of a webhook."""
    document = json.loads(payload(dice.randint(1, 500), dice.choice(ACTIONS)))
    if dice.random() < 0.3:
        document |= {
            "changes": {"repository": {"name": {"from": "old"}}},
            "repositories_added": [],
            "membership": {},
            "organization": {"id": 77, "login": "acme"},
            "installation": {"id": 3, "account": {"id": 77}},
        }
    change: Callable[[], bytes] = (
        (lambda: change_document(dice, document))
        if dice.random() < 0.7
        else (lambda: change_bytes(dice, json.dumps(document).encode()))
    )
    return dice.choice(EVENTS), change()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 300), pytest.param(2, 100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_no_signed_webhook_fails_and_nothing_grows(database: Database, seed: int, count: int) -> None:
    add_pool(database.engine, "linux")
    dice = random.Random(seed)  # noqa: S311  a seed that repeats
    statuses: Counter[int] = Counter()

    async def act(stage: Stage) -> None:
        async def one(event: str, body: bytes) -> None:
            answer = await stage.send(body, x_github_event=event)
            assert answer.status_code < 500, (event, body[:2000], answer.text)
            statuses[answer.status_code] += 1

        sizes = []
        for begun in range(0, count, AT_ONCE):
            await asyncio.gather(*(one(*mutated(dice)) for _ in range(min(AT_ONCE, count - begun))))
            stage.outbox.wakes.clear()
            stage.outbox.sent.clear()
            if begun in {count // 2 // AT_ONCE * AT_ONCE, (count - 1) // AT_ONCE * AT_ONCE}:
                gc.collect()
                sizes.append(len(gc.get_objects()))
        assert (stage.intake.depth, stage.intake._reading) == (0, 0)
        assert len(stage.intake.counts) < 20
        assert sizes[1] - sizes[0] < 20_000

    on(database, act)
    assert set(statuses) <= {202, 400, 413}
    assert min(statuses[202], statuses[400]) > count // 20, statuses
