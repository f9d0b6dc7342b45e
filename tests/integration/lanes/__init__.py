"""Every lane of the control plane while one row that it needs is locked (law L14)."""
