"""Races that are halted at named points between statements of real connections."""
