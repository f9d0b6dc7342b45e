"""Owners of runner Pods: a pool owns its Pods directly, or each Pod belongs to a StatefulSet of its own."""
