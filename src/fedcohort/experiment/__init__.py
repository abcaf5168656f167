"""Configurations, runs and their store."""
