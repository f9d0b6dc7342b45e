"""The worker itself: application, decorator, runtime, beat and Flower."""
