"""What runners report of turns."""
