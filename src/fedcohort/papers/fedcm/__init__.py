"""The tables of the FedCM paper."""
