"""Several devices and several processes as one run."""
