"""Plots of runs, and reports as pages."""
