"""Pure decisions: observed state in, plan or verdict out, no I/O."""
