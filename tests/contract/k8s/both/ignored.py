"""Everything that the comparison of the two API servers ignores, each with its reason.

`kind` is a pattern of the object's kind (a Status is `Status:<its reason>`). `path` is a pattern of the place in the
object, and `*` stands for one step. Every rule is needed: a test removes each rule and sees differences.

Three sorts of values are compared by their relations. UIDs and resourceVersions are numbered by their first appearance
in a probe, so the same value must come back wherever the real server repeats it. A time equals any other time. Tokens
are compared without their signature, and with times relative to `iat`. A resourceVersion equals any other one where it
counts the writes of a whole server: in lists, in bookmarks (a probe tests that a watch can start from one), and in a
definition, whose status the real server writes in steps. Bookmarks within a watch come at any time and are left out,
except the one that ends the initial events.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ignored:
    """A place whose value is not compared."""

    kind: str
    path: str
    reason: str


@dataclass(frozen=True)
class Added:
    """A place where the real server may have members that the embedded one lacks. The other members are compared."""

    kind: str
    path: str
    reason: str


IGNORED = (
    Ignored(
        "[!R]*",
        "metadata.managedFields",
        "the embedded server records field managers of RunnerPools only, because Ostler reads no others",
    ),
    Ignored(
        "*List",
        "metadata.continue",
        "opaque: that the next page follows from it, and from nothing after the last, is probed",
    ),
    Ignored(
        "Status:Invalid",
        "message",
        "words of validation: nobody reads them, they go into no log of ours; causes are compared",
    ),
    Ignored("Status:Invalid", "details.causes.*.message", "as the message"),
    Ignored("Status:BadRequest", "message", "quotes the server's Go parsers; Ostler tells it by its status"),
    Ignored(
        "Status:UnsupportedMediaType",
        "message",
        "lists media types that differ by kind; a client of ours sends one of the two",
    ),
    Ignored("Status:UnsupportedMediaType", "details", "as the message"),
    Ignored("Status:NotAcceptable", "message", "lists media types; a client of ours reads the status"),
    Ignored(
        "Pod",
        "spec.containers.*.resources",
        "the real server writes quantities in one form (2000m as 2); we read a pool's",
    ),
    Ignored("version", "*", "the embedded server's version says what it is; Ostler does not read it"),
)

ADDED = (
    Added(
        "Pod", "spec", "defaults for a scheduler and a container runtime; all that was sent comes back and is compared"
    ),
    Added("Pod", "status", "defaults as qosClass, lastState and lastProbeTime, which nobody here reads"),
    Added("Node", "status", "a Node's empty nodeInfo and daemonEndpoints, and allocatable, which nobody here reads"),
    Added("CustomResourceDefinition", "spec", "defaults as conversion and the names' singular"),
)
