"""Base posteriors: adapters, training, simulation, domain randomisation."""
