"""What lets the whole system run, and break, on one machine. Nothing of Ostler imports it but the command."""
