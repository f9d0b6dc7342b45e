"""`ostler-lab kubelet`: run the Pods of one namespace until SIGTERM.

One JSON line on the output reports that the kubelet is ready. At SIGTERM it stops its containers. It deletes no Pod.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sys
from pathlib import Path

import aiohttp

from lab.kubelet.cluster import Cluster
from lab.kubelet.exec_server import ExecServer
from lab.kubelet.journal import Journal
from lab.kubelet.kubeconfig import read_kubeconfig
from lab.kubelet.kubelet import Kubelet
from lab.kubelet.node import RENEW_SECONDS, NodeHeartbeat
from lab.kubelet.quota import RealQuota
from lab.kubelet.simulated import Simulation
from lab.kubelet.worker import Ground


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    access = read_kubeconfig(arguments.kubeconfig)
    arguments.work.mkdir(parents=True, exist_ok=True)
    async with (
        Cluster(access=access, namespace=arguments.namespace, node=arguments.node) as cluster,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        with Journal(arguments.log) as journal:
            ground = Ground(
                cluster=cluster,
                journal=journal,
                simulation=Simulation(http=http, github_url=arguments.github_url.rstrip("/")),
                quota=RealQuota(wanted=arguments.real),
                work=arguments.work,
                dispatch_url=arguments.dispatch_url,
                kubeconfig=arguments.kubeconfig,
                hooks_url=arguments.hooks_url,
                start_delay=arguments.start_delay,
            )
            heartbeat = NodeHeartbeat(cluster=cluster, alive_file=arguments.alive_file, every=arguments.renew_every)
            kubelet = Kubelet(ground=ground, node=arguments.node, heartbeat=heartbeat, serves=arguments.serves)
            execs = ExecServer(find=kubelet.hook_pod, folder=arguments.work / "certificates")
            heartbeat.endpoint = arguments.exec_host, await execs.start(arguments.exec_host)
            try:
                await _until_signalled(kubelet, arguments)
            finally:
                await execs.stop()


async def _until_signalled(kubelet: Kubelet, arguments: argparse.Namespace) -> None:
    said = False

    def ready() -> None:
        nonlocal said
        if not said:
            said = True
            facts = {"ready": True, "namespace": arguments.namespace, "node": arguments.node}
            sys.stdout.write(json.dumps(facts) + "\n")
            sys.stdout.flush()

    serving = asyncio.create_task(kubelet.serve(ready=ready))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="ostler-lab kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--node", default="lab-node", help="name of the Node that this kubelet registers")
    parser.add_argument("--serves", help="bind only Pods whose node selector has this name")
    parser.add_argument("--github-url", required=True, help="address of the lab's GitHub (http://…)")
    parser.add_argument("--real", type=int, default=10, help="number of Pods that execute their job as real processes")
    parser.add_argument("--log", type=Path, required=True, help="file of the journal (JSON lines)")
    parser.add_argument("--work", type=Path, required=True, help="folder of the volumes of real Pods")
    parser.add_argument("--dispatch-url", help="address to poll instead of the Pods' OSTLER_DISPATCH_URL")
    parser.add_argument(
        "--hooks-url", help="address of the API server for sidecars of container jobs (default: that of the kubeconfig)"
    )
    parser.add_argument(
        "--exec-host", default="127.0.0.1", help="address of the exec endpoint, which the Node's status has too"
    )
    parser.add_argument("--alive-file", type=Path, help="file that is touched after each renewal of the Node's Lease")
    parser.add_argument("--renew-every", type=float, default=RENEW_SECONDS, help="seconds between two renewals")
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds between binding and start")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
