"""Files to arrays: datasets, formats, downloads, splits. No model."""
