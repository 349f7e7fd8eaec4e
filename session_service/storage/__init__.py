"""The database: engines, schema, and the one seam through which everything is read and written."""
