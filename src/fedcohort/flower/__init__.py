"""The same selector in a real Flower deployment. The only importer of flwr."""
