"""Runner Pods: their manifest, scripts, owners, stamps, Events and identity."""
