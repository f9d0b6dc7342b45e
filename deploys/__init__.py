"""Deploy checks: the changes of a deploy, and every reason to refuse it. All functions are pure."""
