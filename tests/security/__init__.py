"""Attacks: each test plays somebody who must not get far, and succeeded before the attack was closed."""
