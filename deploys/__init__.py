"""Deploy checks: what a deploy changes, and every reason not to do it. Pure, and apart from the rules of the fleet."""
