"""Start of Pods on a real node, from the row in Postgres to the first poll. The bound is the start of a bare container.

The node is a kubelet and a containerd in namespaces of their own (`lab.node`), so this benchmark needs root.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from benchmarks.frame import Recorder, Target
from lab.bootstrap import RUNNER_IMAGE, LabPool
from lab.node.build_images import IMAGES, MEGABYTE, size_over
from lab.node.cluster import NodeCluster
from lab.node.images import debian_base, runner_image
from lab.node.node import Node
from lab.node.product_images import LAB, PRODUCT
from lab.processes import StartError
from lab.system import NODE, Options, System

LABELS = ("self-hosted", "linux", "bench")
ENDS_WITHIN = 300.0
"""Seconds within which the jobs of a round end."""
_UNCOMPRESSED = "uncompressed; the base is a small Debian with Python, curl and git"


def run(recorder: Recorder) -> None:
    """Run the benchmark and record its figures. Raises `StartError` outside the namespaces of a node."""
    _images(recorder)
    _cluster(recorder)
    folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
    pods = recorder.size(4, 1)
    pool = LabPool("bench", LABELS, pods, cpu="50m", memory="128Mi")
    options = Options(pools=(pool,), beats=1, own_identities=False, settings={"OSTLER_LOG_LEVEL": "WARNING"})
    with System(folder, options, say=recorder.say, cluster=NODE) as system:
        system.wait_for_warm_pods(pods, timeout=180)
        engine = create_engine(system.postgres.url("ostler"))
        for _ in range(recorder.size(3, 1)):
            _round(recorder, system, engine, jobs=recorder.size(20, 2))
        engine.dispose()
    shutil.rmtree(folder, ignore_errors=True)
    recorder.lab = {
        "node": "kubelet, containerd and runc with Pods of two containers; the image is on the node",
        "jobs": "0.5 s each; at most four Pods start or run at the same time",
    }


def _images(recorder: Recorder) -> None:
    """Measure the images, without the layers of their base."""
    for title, name, target in (
        ("image of the product", PRODUCT, (Target("median", "≤", 250),)),
        ("image of the lab", LAB, ()),
        ("reference image of runners", RUNNER_IMAGE, ()),
    ):
        with recorder.window() as window:
            size = size_over(debian_base(recorder.say), IMAGES[name](name, recorder.say))
        recorder.add(f"{title}, over its base", "MB", size / MEGABYTE, window, targets=target, note=_UNCOMPRESSED)


def _cluster(recorder: Recorder) -> None:
    """Measure the start of a whole cluster with one node."""
    for _ in range(recorder.size(3, 1)):
        folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
        image = runner_image(RUNNER_IMAGE)
        with recorder.window() as window:
            cluster = NodeCluster.start(folder, images=[image], say=recorder.say)
        recorder.add(
            "start of the control plane, the scheduler and a node",
            "s",
            window.seconds,
            window,
            targets=(Target("median", "≤", 30),),
            note="until the node is Ready; every program and image is cached",
        )
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _round(recorder: Recorder, system: System, engine: Engine, *, jobs: int) -> None:
    """Run jobs, and measure the starts of the Pods that replace spent Pods, and the starts of bare containers."""
    with engine.connect() as db:
        newest = db.execute(text("SELECT coalesce(max(id), 0) FROM runner_pods")).scalar_one()
    with recorder.window() as window:
        body = {"repository": "acme/shop", "labels": list(LABELS), "duration_seconds": 0.5, "count": jobs}
        system.lab("POST", "/jobs", body)
        _wait_for_end(system)
    with engine.connect() as db:
        starts = db.execute(
            text("""
                SELECT extract(epoch FROM first_polled_at - created_at)::float FROM runner_pods
                WHERE id > :newest AND first_polled_at IS NOT NULL
            """),
            {"newest": newest},
        ).scalars()
        recorder.add(
            "Pod created → first poll",
            "s",
            list(starts),
            window,
            bounds=("start and end of a bare container",),
            note="from the commit of the Pod's row to the arrival of its first poll",
        )
    node = system.real_nodes[0]
    with recorder.window() as window:
        bare = [_bare_container(node, number) for number in range(recorder.size(10, 2))]
    recorder.add("start and end of a bare container", "s", bare, window, is_bound=True)


def _wait_for_end(system: System) -> None:
    end = time.monotonic() + ENDS_WITHIN
    while any(count for state, count in system.lab("GET", "/stats")["jobs"].items() if state != "completed"):
        if time.monotonic() > end:
            raise StartError(f"the jobs did not end within {ENDS_WITHIN:.0f} s; the logs are in {system.folder}")
        time.sleep(0.2)


def _bare_container(node: Node, number: int) -> float:
    """Return the seconds that containerd takes to run `true` in the runner image, without a Pod."""
    began = time.monotonic()
    done = node.ctr("run", "--rm", RUNNER_IMAGE, f"bare-{number}-{time.monotonic_ns()}", "/bin/true")
    if done.returncode != 0:
        raise StartError(f"containerd did not run a container: {done.stderr.strip()}")
    return time.monotonic() - began
