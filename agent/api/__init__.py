"""HTTP: every call of the contract, for people's programs. Imported by the service alone."""
