"""fedcohort chooses who trains next."""

__version__ = "0.1.0"
