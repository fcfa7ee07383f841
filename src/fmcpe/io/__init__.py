"""Files that labs have: priors in TOML, pairs and observations in csv, npz, parquet and netCDF, and draws for other tools."""
