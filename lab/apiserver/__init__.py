"""A small Kubernetes API server in memory, so that a first run of the demo needs no Go toolchain.

It supports the verbs that the claim path and the lab's kubelet use, and is not extended further. It has no API
discovery, no quota and no CEL, and of the admission plugins only the two that the claim path needs. Of the controllers,
it has the garbage collector, the deletion of a namespace's content, and the creation of a namespace's ServiceAccount
`default`.

The server injects no faults; the proxy of `lab.faults` does. The real control plane is the reference:
`tests/contract/k8s` sends the same requests to both servers and compares the answers.
"""
