"""Builds, trains and exports the small model of models/tiny. See README.md."""
