"""Access of commands to the cluster with the operator's kubeconfig. Error messages name a cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.kubeconfigs import choose, client_for
from cli.output import AWAY, NOT_FOUND, fail
from ostler.reasons import meaning_of
from ostler.settings import load_cluster

if TYPE_CHECKING:
    from k8s_adapters.calls.client import KubeClient
    from ostler.errors import UpstreamError
    from rules.pools.pool_spec import PoolSpec


@dataclass(frozen=True, slots=True)
class InCluster:
    """A client of the cluster, and the namespaces of the pools."""

    kube: KubeClient
    namespaces: tuple[str, ...]

    def pool(self, name: str) -> PoolSpec:
        """Return the pool with this name. Ends the command with a message if the pool does not exist.

        If each of the two namespaces has a pool of this name, the command also ends: the operator has to select one.
        """
        from k8s_adapters.pools.pools import get_pool

        named = [get_pool(self.kube, namespace=namespace, name=name) for namespace in self.namespaces]
        found = [pool for pool in named if pool is not None]
        if not found:
            fail(
                f"there is no RunnerPool {name!r} in namespace {self.where}; `ostler pool list` lists the pools "
                "of all namespaces, and OSTLER_NAMESPACE selects another one"
            )
        if len(found) > 1:
            fail(
                f"there is a RunnerPool {name!r} in each of the namespaces {self.where}; set OSTLER_NAMESPACE to one "
                "of them and OSTLER_ELEVATED_NAMESPACE to an empty value"
            )
        return found[0]

    @property
    def where(self) -> str:
        """Return the names of the namespaces for a message."""
        return " and ".join(map(repr, self.namespaces))


@contextmanager
def in_cluster(*, verb: str) -> Iterator[InCluster]:
    """Yield access to the cluster. A failed call ends the command with a message that names cause and cure.

    `verb` is the RBAC verb on RunnerPools that the command needs. The message names this verb if access is denied.
    Raises `ConfigurationError` if the kubeconfig cannot be read.
    """
    namespaces = load_cluster().namespaces
    where = " and ".join(map(repr, namespaces))
    with calling(needs=f"get and {verb} on runnerpools.ostler.dev in namespace {where}") as kube:
        yield InCluster(kube, namespaces)


@contextmanager
def calling(
    kubeconfig: str | None = None, *, needs: str, absent: str | None = None, status: int = NOT_FOUND
) -> Iterator[KubeClient]:
    """Yield a client of the operator's cluster. A failed call ends the command with a message of one line.

    `needs` names the RBAC verbs of the calls, for the message about denied access. `absent` is the message for an
    object that does not exist. If `absent` is None, a general message is used. `status` is the exit status if the API
    server refuses a call. If the API server does not answer, the exit status is 3. Raises `ConfigurationError` if the
    credentials cannot be read.
    """
    from k8s_adapters.calls.retry import answer_of
    from ostler.errors import Conflict, Forbidden, Gone, RateLimited, Retryable, UpstreamError

    chosen = choose(kubeconfig)
    kube = client_for(kubeconfig)
    try:
        yield kube
    except UpstreamError as error:
        answer = answer_of(error)
        said = f": {answer.message}" if answer is not None and answer.message else ""
        match error:
            case Forbidden():
                fail(
                    f"the cluster refuses the request{said}. The identity of {chosen.named} needs the verbs {needs}",
                    status=status,
                )
            case Gone():
                fail(
                    absent
                    or (
                        f"the object does not exist, or the cluster does not know the kind RunnerPool{said}. If the "
                        "kind is missing, install its definition with `ostler crd`"
                    ),
                    status=status,
                )
            case Conflict():
                fail(
                    f"the request conflicts with the present state of the object{said}. Run the command again",
                    status=status,
                )
            case Retryable() | RateLimited():
                fail(
                    (
                        f"the API server {kube.server} does not answer: {cause_of(error)}. It is unknown whether "
                        f"anything changed. You can safely repeat the command. Check {chosen.named}, and that the API "
                        "server runs"
                    ),
                    status=AWAY,
                )
            case _:
                fail(f"the cluster refuses the request{said}", status=status)
    finally:
        kube.close()


def cause_of(error: UpstreamError) -> str:
    """Return why the API server did not answer, without the method and path of the call."""
    called, _, rest = str(error).partition(": ")
    return rest.partition(";")[0] if " /" in called and rest else str(error) or meaning_of(error)
