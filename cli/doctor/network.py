"""Check that network policies block jobs from the cluster's own addresses, including public addresses."""

from __future__ import annotations

from cli.doctor.context import Context
from cli.doctor.findings import Outcome, Verdict, ok, unknown, warning
from deploys.addresses import PRIVATE, Addresses, block
from deploys.network_policies import Direction, parse_policy
from deploys.network_reach import Network, Pod, Ports, reach
from deploys.selectors import Malformed
from k8s_adapters.cluster.own_addresses import OwnAddresses, list_policies, own_addresses
from k8s_adapters.names import OWNER_LABEL, POOL_LABEL
from ostler.errors import Forbidden, Gone

SHOWN = 5
"""Maximum number of addresses in one message."""


def job_network(context: Context) -> Verdict:
    """Check that a busy Pod cannot reach the API server, a node, or a private address.

    Each namespace of runner Pods is checked.
    """
    verdicts = [_network_of(context, namespace) for namespace in context.place.namespaces]
    return next((each for each in verdicts if each.outcome is not Outcome.OK), verdicts[0])


def _network_of(context: Context, namespace: str) -> Verdict:
    """Return the verdict on the network policies of one namespace."""
    try:
        policies = tuple(
            parse_policy(each, namespace=namespace) for each in list_policies(context.kube, namespace=namespace)
        )
    except Forbidden:
        return unknown("this identity is not allowed to read NetworkPolicies", "run the command as an administrator")
    except Gone:
        return ok("this API server has no NetworkPolicies, so no check of jobs is possible")
    except Malformed as error:
        return unknown(f"a NetworkPolicy of {namespace} is malformed: {error}", "correct this NetworkPolicy")
    job = Pod("job", namespace, {POOL_LABEL: "any", OWNER_LABEL: "1"}, {})
    found = reach(Network(policies, {}, ()), job, Direction.EGRESS)
    if not found.policies:
        return warning(
            f"no NetworkPolicy of {namespace} limits jobs: the cluster's own addresses and metadata are open",
            "set networkPolicies.enabled of the chart, or close them with your network plugin's own policies",
        )
    return _judge(found.addresses_beside(Ports()), own_addresses(context.kube))


def _judge(reachable: Addresses, own: OwnAddresses) -> Verdict:
    opened = {address: whose for address, whose in own.by_address.items() if reachable.common(block(address))}
    if opened:
        named = ", ".join(f"{address} ({whose})" for address, whose in list(opened.items())[:SHOWN])
        more = f" and {len(opened) - SHOWN} more" if len(opened) > SHOWN else ""
        return warning(
            f"jobs can reach {named}{more}",
            "name these blocks in networkPolicies.runners.clusterAddresses of the chart",
        )
    private = reachable.common(PRIVATE)
    if private:
        return warning(
            f"jobs can reach private addresses: {', '.join(private.cidrs()[:SHOWN])}",
            "check that networkPolicies.runners.allow names only what jobs need",
        )
    if own.unread:
        return unknown(
            f"this identity is not allowed to read {' and '.join(own.unread)}", "run the command as an administrator"
        )
    return ok(f"jobs cannot reach any of the cluster's {len(own.by_address)} addresses")
