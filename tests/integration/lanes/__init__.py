"""Every lane of the control plane with one locked row in its way (law L14)."""
