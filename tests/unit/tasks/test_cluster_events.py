"""A failure to write an Event never affects the work that the Event reports."""

from __future__ import annotations

import threading
from typing import cast
from unittest.mock import patch

from k8s_adapters.calls.client import KubeClient
from k8s_adapters.runners.events import Regarding
from ostler import telemetry
from tasks.worker.cluster_events import Recorder


def test_event_is_dropped_when_no_thread_can_be_started() -> None:
    dropped = telemetry.KUBERNETES_EVENTS.labels("dropped")
    before = dropped._value.get()
    recorder = Recorder(cast("KubeClient", None), who="here")
    pod = Regarding(kind="Pod", api_version="v1", namespace="n", name="p", uid="u")

    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        recorder.record(pod, "Normal", "Retired", "it is surplus")

    assert dropped._value.get() == before + 1
