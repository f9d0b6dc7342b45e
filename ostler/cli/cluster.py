"""How commands speak to the cluster: with the kubeconfig of whoever runs them, and with errors that name a cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostler.cli.output import fail
from ostler.settings import load_cluster

if TYPE_CHECKING:
    from k8s_adapters.client import KubeClient
    from k8s_adapters.pools import PoolSeen


@dataclass(frozen=True, slots=True)
class InCluster:
    """A client, and the namespace of the pools."""

    kube: KubeClient
    namespace: str

    def pool(self, name: str) -> PoolSeen:
        """Return the pool of this name; ends the command when there is none."""
        from k8s_adapters.pools import get_pool  # noqa: PLC0415

        found = get_pool(self.kube, namespace=self.namespace, name=name)
        if found is None:
            fail(f"there is no RunnerPool {name!r} in namespace {self.namespace!r}; `ostler pool list` lists the pools "
                 "of all, and OSTLER_NAMESPACE names another one")  # fmt: skip
        return found


@contextmanager
def in_cluster(*, verb: str) -> Iterator[InCluster]:
    """Yield the way to the cluster; what it answers instead of a success ends the command with its cause and cure.

    `verb` is what the identity must be allowed to do with RunnerPools. Raises ConfigurationError when the kubeconfig
    cannot be read.
    """
    from k8s_adapters.client import make_client  # noqa: PLC0415
    from k8s_adapters.retry import answer_of  # noqa: PLC0415
    from ostler.errors import Conflict, Forbidden, Gone, Invalid, UpstreamError  # noqa: PLC0415

    settings = load_cluster()
    kube = make_client(kubeconfig=settings.kubeconfig)
    try:
        yield InCluster(kube, settings.namespace)
    except UpstreamError as error:
        answer = answer_of(error)
        said = f": {answer.message}" if answer is not None and answer.message else ""
        match error:
            case Forbidden():
                fail(f"the cluster refuses it{said}. The identity of OSTLER_KUBECONFIG needs the verbs get and {verb} "
                     f"on runnerpools.ostler.dev in namespace {settings.namespace!r}")  # fmt: skip
            case Gone():
                fail(f"it is gone by now, or the cluster has no RunnerPools{said}. `ostler crd` installs their kind")
            case Conflict():
                fail("somebody else changes it all the time; try again")
            case Invalid():
                fail(f"the cluster refuses it{said}")
            case _:
                fail(
                    f"the cluster does not answer ({type(error).__name__}); whether anything was changed is not known, "
                    "and doing it again does no harm. Look at OSTLER_KUBECONFIG and at the API server"
                )
    finally:
        kube.close()
