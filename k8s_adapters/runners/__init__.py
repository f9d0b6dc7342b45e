"""Runner Pods: their manifest, scripts, owners, stamps, Events and identity. Events of pools are here too."""
