"""A layer's parts other than attention, and stacks of layers."""
