"""Flow matching: velocity fields, losses, ODE solvers."""
