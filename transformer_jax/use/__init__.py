"""What commands and the Python API share: loading a model, training a run, its limits, flags."""
