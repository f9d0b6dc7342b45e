"""NetworkPolicies on a real node, enforced with nftables. No network plugin that does this could be had for the lab.

This package imports nothing of `deploys/`, which evaluates policies for deploy checks. The tests compare the two.
"""
