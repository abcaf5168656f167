"""The tables and figures of the FLASH paper."""
