"""Loss, optimizer, state, step, compiled program and the loop over steps."""
