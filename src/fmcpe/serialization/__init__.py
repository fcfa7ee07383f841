"""Files that are data, never code."""
