"""A small Kubernetes API server in memory, so that a first run of the demo needs no Go toolchain.

It knows the verbs that the claim path and the lab's kubelet use, and is frozen there: no discovery, no admission
plugins beyond the two that the path meets, no quota, no CEL, no controllers but the collection of objects whose owner
was deleted. It is faultless on purpose; faults come from `lab.faults` and from the real control plane, which is what
counts. `tests/contract/k8s` asks both servers the same and compares the answers.
"""
