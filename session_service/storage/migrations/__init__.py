"""The schema's history, inside the package so that an installed wheel can migrate."""
