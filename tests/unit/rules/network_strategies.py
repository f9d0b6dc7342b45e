"""Random policies and Pods for tests that compare two evaluators. The values are few, so that they often meet."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from deploys.addresses import block

Json = dict[str, Any]

NAMESPACES = {
    name: {"kubernetes.io/metadata.name": name, **labels}
    for name, labels in {"a": {"team": "red"}, "b": {"team": "blue"}, "c": {}}.items()
}
ADDRESSES = (
    "0.0.0.1",
    "10.0.0.0",
    "10.0.255.255",
    "10.1.0.0",
    "10.1.2.3",
    "11.0.0.0",
    "255.255.255.255",
    "::",
    "fd00::1",
    "fd00:0:0:1::",
    "fdff::",
    "fe00::",
)
BLOCKS = ("0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "10.1.2.3/32", "::/0", "fd00::/8", "fd00::/64")
PORTS = (1, 53, 80, 81, 100, 443, 65535)
KEYS, VALUES = ("app", "tier", "ver"), ("x", "y", "z")

few = st.sampled_from(("a", "b"))
"""Two namespaces most of the time, so that policies, Pods and peers meet."""
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3)
expression = st.one_of(
    st.builds(
        lambda k, o, v: {"key": k, "operator": o, "values": v},
        st.sampled_from((*KEYS, "team")),
        st.sampled_from(("In", "NotIn")),
        st.lists(st.sampled_from((*VALUES, "red")), min_size=1, max_size=2),
    ),
    st.builds(
        lambda k, o: {"key": k, "operator": o},
        st.sampled_from((*KEYS, "team")),
        st.sampled_from(("Exists", "DoesNotExist")),
    ),
)
selector = st.one_of(
    st.just({}),
    st.builds(lambda e: {"matchExpressions": [e]}, expression),
    st.builds(lambda m: {"matchLabels": m}, labels),
    st.builds(lambda e: {"matchExpressions": e}, st.lists(expression, max_size=2)),
    st.builds(lambda m, e: {"matchLabels": m, "matchExpressions": [e]}, labels, expression),
)
namespace_selector = st.one_of(
    selector,
    st.sampled_from(list(NAMESPACES)).map(lambda n: {"matchLabels": {"kubernetes.io/metadata.name": n}}),
)


@st.composite
def ip_block(draw: st.DrawFn) -> Json:
    cidr = draw(st.sampled_from(BLOCKS))
    within = [each for each in BLOCKS if each != cidr and not block(each).minus(block(cidr))]
    cuts = draw(st.lists(st.sampled_from(within), max_size=2, unique=True)) if within else []
    return {"ipBlock": {"cidr": cidr, **({"except": cuts} if cuts else {})}}


peer = st.one_of(
    st.builds(lambda s: {"podSelector": s}, selector),
    st.builds(lambda s: {"namespaceSelector": s}, namespace_selector),
    st.builds(lambda s, n: {"podSelector": s, "namespaceSelector": n}, selector, namespace_selector),
    ip_block(),
)
protocol = st.sampled_from(("TCP", "UDP", "SCTP"))
named_port = st.builds(
    lambda p, n: {"protocol": p, "port": n}, st.sampled_from(("TCP", "UDP")), st.sampled_from(("http", "dns"))
)
port = st.one_of(
    st.just({}),
    named_port,
    st.builds(lambda p: {"protocol": p}, protocol),
    st.builds(lambda p, n: {"protocol": p, "port": n}, protocol, st.sampled_from((*PORTS, "http", "dns"))),
    st.builds(lambda n: {"port": n, "endPort": min(n + 20, 65535)}, st.sampled_from(PORTS)),
)


def rule(field: str) -> st.SearchStrategy[Json]:
    return st.one_of(
        st.fixed_dictionaries({}, optional={field: st.lists(peer, max_size=2), "ports": st.lists(port, max_size=2)}),
        st.builds(lambda p: {"ports": [p]}, named_port),
    )


policy = st.builds(
    lambda namespace, spec: {"metadata": {"namespace": namespace, "name": "p"}, "spec": spec},
    few,
    st.fixed_dictionaries(
        {"podSelector": st.one_of(st.just({}), selector)},
        optional={
            "policyTypes": st.sampled_from(([], ["Ingress"], ["Egress"], ["Ingress", "Egress"])),
            "ingress": st.lists(rule("from"), max_size=2),
            "egress": st.lists(rule("to"), max_size=2),
        },
    ),
)
pod = st.builds(
    lambda n, ls, p: {"namespace": n, "labels": ls, "ports": p},
    st.one_of(few, few, st.just("c")),
    labels,
    st.sampled_from(({}, {"http": ("TCP", 80)}, {"http": ("TCP", 443), "dns": ("UDP", 53)}, {"dns": ("TCP", 53)})),
)
