"""Scripts that run in a runner Pod, and the reference image. No module imports this package."""
