"""The execution of one turn, from the open call to the report that it stopped."""
