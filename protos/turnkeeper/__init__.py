"""The session service and the runner service over gRPC: contract, shared wire code, clients."""
