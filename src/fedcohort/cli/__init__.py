"""Argument parsing only."""
