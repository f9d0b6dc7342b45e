"""The worker process: application, task decorator, runtime, beat and Flower."""
