"""One run on several devices and in several processes."""
