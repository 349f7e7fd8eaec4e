"""What both ends of a call must agree on."""
