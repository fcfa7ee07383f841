"""Regressions, ensembles of networks, embeddings, the training loop."""
