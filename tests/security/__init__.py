"""Attacks: each test acts as an attacker, and succeeded before the attack was prevented."""
