"""HTTP faults, caused by a reverse proxy in front of any HTTP upstream: API server, GitHub or web.

The proxy does not interpret the traffic. Tests use `FaultProxy`; `python -m lab.faults` runs the same proxy as a
process.
"""

from lab.faults.fault import OF_STREAMS, Fault, FaultPlan, Kind
from lab.faults.proxy import FaultProxy, kubeconfig_through

__all__ = ["OF_STREAMS", "Fault", "FaultPlan", "FaultProxy", "Kind", "kubeconfig_through"]
