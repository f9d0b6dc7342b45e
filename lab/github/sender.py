"""Webhooks: signed, sent once and not retried, with faults that a test chooses.

A fault can double a webhook, and a client can request a redelivery. An attempt that got any answer is logged as
`webhook_sent` with its status. An attempt that was never made, was dropped or got no answer within ten seconds is
logged as `webhook_lost`. The bodies of the latest webhooks are kept, so that a redelivery (with the same GUID) can be
requested. The API lists attempts as GitHub does: each redelivery is a separate entry with the GUID of the first.

Deliveries of different installations do not wait for each other. The deliveries of one installation share `CONNECTIONS`
connections, which represent the capacity of the machine. The ten seconds of a delivery begin when it gets a connection.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import hmac
import json
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from lab.github.entities import Account, Job, now, stamp
from lab.github.journal import Journal
from lab.github.payloads import webhook_head

TIMEOUT_SECONDS = 10
CONNECTIONS = 64
KEPT_DELIVERIES = 250_000
KEPT_ATTEMPTS = 300_000
REORDER_SECONDS = 0.2


@dataclass(kw_only=True)
class Weather:
    """Faults of the network between this GitHub and its listener.

    `drop_action` names an action whose webhooks are all dropped. `vanish_action` names an action whose webhooks are
    never attempted, so that the list of deliveries does not contain them; `vanish_rate` is the share of all webhooks
    that vanish in this way. `delay_rate` is the share that `delay_max_seconds` and `reorder` apply to.
    """

    drop_rate: float = 0
    drop_action: str = ""
    vanish_rate: float = 0
    vanish_action: str = ""
    duplicate_rate: float = 0
    delay_rate: float = 1
    delay_max_seconds: float = 0
    reorder: bool = False
    paused: bool = False


@dataclass(kw_only=True)
class Delivery:
    """One webhook and the result of its latest attempt. `id` is the id of that attempt."""

    id: int
    guid: str
    action: str
    job_id: int
    installation_id: int
    repository_id: int
    head: bytes
    tail: bytes
    delivered_at: str | None = None
    redelivery: bool = False
    duration: float = 0
    status_code: int = 0
    event: str = "workflow_job"

    def view(self) -> dict[str, Any]:
        """Return the delivery in the format of GitHub's REST API."""
        accepted = self.status_code in range(200, 300)
        return {
            "id": self.id,
            "guid": self.guid,
            "delivered_at": self.delivered_at,
            "redelivery": self.redelivery,
            "duration": round(self.duration, 3),
            "status": "OK" if accepted else "failed to connect to host" if not self.status_code else "Invalid response",
            "status_code": self.status_code,
            "event": self.event,
            "action": self.action,
            "installation_id": self.installation_id,
            "repository_id": self.repository_id,
            "throttled_at": None,
        }


class Sender:
    """Sends webhooks over one connection pool."""

    def __init__(self, *, url: str | None, secret: str, app_id: str, journal: Journal, rng: Random) -> None:
        self.weather = Weather()
        self.deliveries: OrderedDict[str, Delivery] = OrderedDict()
        self.attempts: dict[int, dict[str, Any]] = {}
        self._url = url
        self._secret = secret.encode()
        self._app_id = app_id
        self._journal = journal
        self._rng = rng
        self._ended: list[int] = []
        self._session: aiohttp.ClientSession | None = None
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[Delivery] = []
        self._last_id = int(time.time()) * 100

    @property
    def in_flight(self) -> int:
        """Number of deliveries that are being sent or held back by a pause."""
        return len(self._tasks) + len(self._held)

    async def open(self) -> None:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            skip_auto_headers=("User-Agent", "Content-Type"),
        )

    async def close(self) -> None:
        """Cancel the deliveries in flight and close the pool."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    def announce(self, event: str, account: Account, body: dict[str, Any]) -> None:
        """Send a webhook that is not about a job, in the background."""
        delivery = Delivery(
            id=0,
            guid=str(uuid.uuid4()),
            action=body["action"],
            job_id=0,
            installation_id=account.installation_id,
            repository_id=0,
            head=json.dumps(body).encode(),
            tail=b"",
            event=event,
        )
        self.deliveries[delivery.guid] = delivery
        if self._drops(delivery.action):
            self._note(delivery, self._next_id(), time.monotonic(), 0)
            self._lost(delivery, "dropped")
            return
        self._send(delivery, 0)

    def adopt(self, *, url: str, secret: str, app_id: str) -> None:
        """Send all further webhooks for another App."""
        self._url, self._secret, self._app_id = url, secret.encode(), app_id

    def ping(self, *, app_id: int, body: dict[str, Any]) -> None:
        """Send the ping for the webhook of a new App."""
        delivery = Delivery(
            id=0,
            guid=str(uuid.uuid4()),
            action="",
            job_id=0,
            installation_id=0,
            repository_id=0,
            head=json.dumps(body | {"hook": {"type": "App", "id": app_id, "active": True}}).encode(),
            tail=b"",
            event="ping",
        )
        self.deliveries[delivery.guid] = delivery
        self._send(delivery, 0)

    def publish(self, action: str, job: Job) -> None:
        """Send a webhook about the current state of a job, in the background."""
        delivery = Delivery(
            id=0,
            guid=str(uuid.uuid4()),
            action=action,
            job_id=job.id,
            installation_id=job.repository.account.installation_id,
            repository_id=job.repository.id,
            head=webhook_head(action, job),
            tail=job.repository.tail,
        )
        self.deliveries[delivery.guid] = delivery
        if len(self.deliveries) > KEPT_DELIVERIES:
            self.deliveries.popitem(last=False)
        if action == self.weather.vanish_action or self._rng.random() < self.weather.vanish_rate:
            self._lost(delivery, "never sent")
            return
        if self._drops(action):
            self._note(delivery, self._next_id(), time.monotonic(), 0)
            self._lost(delivery, "dropped")
            return
        late = self._rng.random() < self.weather.delay_rate
        delay = self._rng.uniform(0, self.weather.delay_max_seconds) if late else 0
        if self.weather.reorder:
            delay += self._rng.uniform(0, REORDER_SECONDS) if late else 0
        else:
            # A delayed delivery also delays the later deliveries of the same job.
            due = max(time.monotonic() + delay, job.next_delivery)
            delay, job.next_delivery = due - time.monotonic(), due
        self._send(delivery, delay)
        if self._rng.random() < self.weather.duplicate_rate:
            self._send(delivery, delay + self._rng.uniform(0, REORDER_SECONDS))

    def redeliver(self, guid: str) -> bool:
        """Send a delivery again under its GUID, without faults.

        Return False if it is unknown or there is no webhook URL.
        """
        delivery = self.deliveries.get(guid)
        if delivery is None or self._url is None:
            return False
        self._send(delivery, 0, redelivery=True)
        return True

    def newest(self, most: int, *, before: int) -> list[int]:
        """Return the ids of up to `most` ended attempts below `before`, newest first.

        The order is that of the ids. An attempt that waited long for its answer therefore appears after attempts that
        ended before it.
        """
        end = bisect.bisect_left(self._ended, before)
        return self._ended[max(0, end - most) : end][::-1]

    def attempt_again(self, attempt_id: int) -> bool:
        """Repeat the delivery of an attempt, with the current faults. Return False if it is unknown."""
        attempt = self.attempts.get(attempt_id)
        delivery = self.deliveries.get(attempt["guid"]) if attempt else None
        if delivery is None:
            return False
        if self._drops(delivery.action):
            self._note(delivery, self._next_id(), time.monotonic(), 0, redelivery=True)
            self._lost(delivery, "dropped")
        else:
            self._send(delivery, 0, redelivery=True)
        return True

    def change_weather(self, **changes: Any) -> None:
        """Change the given faults. If `paused` is false afterwards, send the deliveries that were held back."""
        for name, value in changes.items():
            setattr(self.weather, name, value)
        if not self.weather.paused:
            held, self._held = self._held, []
            for delivery in held:
                self._send(delivery, 0)

    def _send(self, delivery: Delivery, delay: float, *, redelivery: bool = False) -> None:
        if self.weather.paused and not redelivery:
            self._held.append(delivery)
            return
        task = asyncio.get_running_loop().create_task(self._attempt(delivery, delay, redelivery=redelivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drops(self, action: str) -> bool:
        by_chance = self._rng.random() < self.weather.drop_rate
        by_name = bool(action) and action == self.weather.drop_action  # a ping has no action
        return self._url is None or by_chance or by_name

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def _attempt(self, delivery: Delivery, delay: float, *, redelivery: bool) -> None:
        if delay > 0:
            await asyncio.sleep(delay)
        if self._session is None or self._url is None:
            raise RuntimeError("the sender has no connection pool or no webhook URL: call open() first")
        async with self._turns.setdefault(delivery.installation_id, asyncio.Semaphore(CONNECTIONS)):
            await self._post(self._session, self._url, delivery, redelivery=redelivery)

    async def _post(self, session: aiohttp.ClientSession, url: str, delivery: Delivery, *, redelivery: bool) -> None:
        body = delivery.head + delivery.tail
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/0lab000",
            "Accept": "*/*",
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Delivery": delivery.guid,
            "X-GitHub-Hook-ID": "4000001",
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-GitHub-Hook-Installation-Target-ID": self._app_id,
            "X-Hub-Signature-256": "sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest(),
        }
        attempt_id, began = self._next_id(), time.monotonic()
        try:
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()
                self._note(delivery, attempt_id, began, answer.status, redelivery=redelivery)
                self._journal.write(
                    "webhook_sent",
                    guid=delivery.guid,
                    action=delivery.action,
                    job=delivery.job_id,
                    status=answer.status,
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._note(delivery, attempt_id, began, 0, redelivery=redelivery)
            self._lost(delivery, type(error).__name__)

    def _note(
        self, delivery: Delivery, attempt_id: int, began: float, status: int, *, redelivery: bool = False
    ) -> None:
        """Add an ended attempt to the list."""
        delivery.id = attempt_id
        delivery.delivered_at = stamp(now())
        delivery.redelivery = redelivery
        delivery.duration = time.monotonic() - began
        delivery.status_code = status
        self.attempts[attempt_id] = delivery.view()
        bisect.insort(self._ended, attempt_id)
        if len(self._ended) > KEPT_ATTEMPTS:
            del self.attempts[self._ended.pop(0)]

    def _lost(self, delivery: Delivery, reason: str) -> None:
        self._journal.write(
            "webhook_lost", guid=delivery.guid, action=delivery.action, job=delivery.job_id, reason=reason
        )
