"""Deploy checks: the changes of a deploy, and every reason to refuse the deploy. All functions are pure."""
