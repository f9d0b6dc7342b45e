"""Races, stopped at named points between statements of real connections."""
