"""The contract's generated stubs; `make protos` writes them."""
