"""The tables and figures of the FedACS paper."""
