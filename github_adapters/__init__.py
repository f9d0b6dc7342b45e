"""All that Ostler says to GitHub and hears from it; nothing above this package knows HTTP."""
