"""Conversion of resources of actions-runner-controller to pools, for `ostler pool convert`. No process imports it."""
