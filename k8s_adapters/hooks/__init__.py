"""Container jobs in the cluster: the sidecar `hooks` of a runner Pod, its rights, and the Pods that it creates."""
