"""Pure decisions: each function takes an observed state and returns a plan or a verdict, without I/O."""
