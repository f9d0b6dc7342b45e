"""A real Kubernetes node on this machine: kubelet, scheduler and containerd, isolated from everything else on it."""
