"""From the decoder's output to probabilities, and the losses of training."""
