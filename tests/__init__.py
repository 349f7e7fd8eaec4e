"""The suite. It drives the services through real sockets and real databases; only the outer edge is stood in for."""
