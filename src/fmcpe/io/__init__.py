"""User files: priors in TOML; pairs and observations in csv, npz, parquet and netCDF; draws for other tools."""
