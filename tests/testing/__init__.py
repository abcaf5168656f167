"""The shipped contracts, on the catalogue and on things that are broken on purpose."""
