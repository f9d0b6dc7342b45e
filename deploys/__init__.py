"""Deploy checks: the changes of a deploy, and reasons to refuse the deploy. No function does I/O."""
