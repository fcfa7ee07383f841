"""Simulator families, a file each."""
