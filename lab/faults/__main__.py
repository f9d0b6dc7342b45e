"""`python -m lab.faults`: the proxy as a process. When ready it prints one JSON line `{"url": …}`; SIGTERM ends it.

`--plan` names a JSON file with a seed and faults (`FaultPlan.load`). Without it there are no faults. With `--control`,
the proxy itself serves `/_faults`: POST a fault, DELETE all faults, GET the counts by kind and by route.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from lab.faults.fault import FaultPlan
from lab.faults.proxy import Gateway, Upstream


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    upstream = Upstream.of(arguments.upstream, ca_file=arguments.ca_file, verify=not arguments.insecure)
    plan = FaultPlan.load(arguments.plan) if arguments.plan else FaultPlan(seed=arguments.seed)
    gateway = Gateway(upstream=upstream, plan=plan, control=arguments.control)
    port = await gateway.start(port=arguments.port)
    closing = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, closing.set)
    sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{port}"}) + "\n")
    sys.stdout.flush()
    await closing.wait()
    await gateway.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--upstream", required=True, help="the address to stand before, http:// or https://")
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0 chooses")
    parser.add_argument("--ca-file", type=Path, help="trust this certificate authority of an https:// upstream")
    parser.add_argument("--insecure", action="store_true", help="trust any certificate of an https:// upstream")
    parser.add_argument("--control", action="store_true", help="serve /_faults")
    parser.add_argument("--plan", type=Path, help="JSON file of the faults in force from the start")
    parser.add_argument("--seed", type=int, default=0, help="of the faults' dice, where there is no plan")
    try:
        asyncio.run(serve(parser.parse_args()))
    except (OSError, ValueError) as error:
        sys.exit(f"lab.faults: {error}")


if __name__ == "__main__":
    main()
