"""The tables and figures of the FLASH-RL paper."""
