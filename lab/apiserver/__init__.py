"""A small Kubernetes API server in memory, so that a first run of the demo needs no Go toolchain.

It supports only the verbs that the claim path and the lab's kubelet use, and will not grow. It has no discovery, no
quota and no CEL. It has only the two admission plugins that the path meets. Its only controller collects objects whose
owner was deleted.

It has no faults on purpose. Faults come from `lab.faults` and from the real control plane, whose behaviour decides.
`tests/contract/k8s` sends the same requests to both servers and compares the answers.
"""
