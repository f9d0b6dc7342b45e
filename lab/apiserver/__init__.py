"""A small Kubernetes API server in memory, so that a first run of the demo needs no Go toolchain.

It supports only the verbs that the claim path and the lab's kubelet use, and no further ones are planned. It has no
discovery, no quota and no CEL. It has only the two admission plugins that the claim path needs. Its only controller
deletes objects whose owner was deleted.

It has no faults on purpose: `lab.faults` adds them. If it differs from the real control plane, the real one is right.
`tests/contract/k8s` sends the same requests to both servers and compares the answers.
"""
