"""NetworkPolicies on a real node, enforced with nftables. No network plugin for this was available for the lab.

This package imports nothing of `deploys/`, which evaluates policies for deploy checks. The tests compare the two.
"""
