"""HTTP faults, produced by a reverse proxy in front of any HTTP upstream: API server, GitHub or web.

The proxy does not interpret its traffic. `FaultProxy` is for tests; `python -m lab.faults` runs it as a process.
"""

from lab.faults.fault import Fault, FaultPlan, Kind
from lab.faults.proxy import FaultProxy, kubeconfig_through

__all__ = ["Fault", "FaultPlan", "FaultProxy", "Kind", "kubeconfig_through"]
