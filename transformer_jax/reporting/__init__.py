"""Metric writers and plots."""
