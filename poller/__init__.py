"""The scripts that run in a runner Pod, and the reference image; nothing here is imported."""
