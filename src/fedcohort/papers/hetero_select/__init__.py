"""The tables of the HeteRo-Select paper."""
