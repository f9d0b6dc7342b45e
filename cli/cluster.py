"""Access of commands to the cluster: with the operator's kubeconfig, and with errors that name a cure."""

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
    from k8s_adapters.client import KubeClient
    from k8s_adapters.pools import PoolSeen
    from ostler.errors import UpstreamError


@dataclass(frozen=True, slots=True)
class InCluster:
    """A client, and the namespace of the pools."""

    kube: KubeClient
    namespace: str

    def pool(self, name: str) -> PoolSeen:
        """Return the pool of this name; ends the command when there is none."""
        from k8s_adapters.pools import get_pool

        found = get_pool(self.kube, namespace=self.namespace, name=name)
        if found is None:
            fail(
                f"there is no RunnerPool {name!r} in namespace {self.namespace!r}; `ostler pool list` lists the pools "
                "of all namespaces, and OSTLER_NAMESPACE selects another one"
            )
        return found


@contextmanager
def in_cluster(*, verb: str) -> Iterator[InCluster]:
    """Yield the way to the cluster; what it answers instead of a success ends the command with its cause and cure.

    `verb` is what the identity must be allowed to do with RunnerPools. Raises ConfigurationError when the kubeconfig
    cannot be read.
    """
    namespace = load_cluster().namespace
    with calling(needs=f"get and {verb} on runnerpools.ostler.dev in namespace {namespace!r}") as kube:
        yield InCluster(kube, namespace)


@contextmanager
def calling(
    kubeconfig: str | None = None, *, needs: str, absent: str | None = None, status: int = NOT_FOUND
) -> Iterator[KubeClient]:
    """Yield a client of the operator's cluster, and end the command in one line when a call fails.

    `needs`: the verbs that its calls take. `absent`: what it means that something does not exist. `status`: the exit
    status when the API server refuses; it is 3 when it does not answer. Raises ConfigurationError as `client_for` does.
    """
    from k8s_adapters.retry import answer_of
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
                    or f"the object is gone, or the cluster has no RunnerPools{said}. `ostler crd` installs them",
                    status=status,
                )
            case Conflict():
                fail("another client keeps changing the object; try again", status=status)
            case Retryable() | RateLimited():
                fail(
                    f"the API server {kube.server} does not answer: {cause_of(error)}. Whether anything changed is "
                    f"unknown, and a repetition is safe. Check {chosen.named}, and that the API server runs",
                    status=AWAY,
                )
            case _:
                fail(f"the cluster refuses the request{said}", status=status)
    finally:
        kube.close()


def cause_of(error: UpstreamError) -> str:
    """Return why the API server did not answer, without the call that it did not answer."""
    called, _, rest = str(error).partition(": ")
    return rest.partition(";")[0] if " /" in called and rest else str(error) or meaning_of(error)
