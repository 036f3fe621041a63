"""Loss, optimizer, sharded step, host loop and checkpoints."""
