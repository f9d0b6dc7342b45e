"""HTTP faults, played by a reverse proxy that stands before any HTTP upstream: API server, GitHub or web.

Knows nothing of the traffic through it. `FaultProxy` is for a test; `python -m lab.faults` is the same as a process.
"""

from lab.faults.fault import Fault, FaultPlan, Kind
from lab.faults.proxy import FaultProxy, kubeconfig_through

__all__ = ["Fault", "FaultPlan", "FaultProxy", "Kind", "kubeconfig_through"]
