"""The public trace formats, a module for each family; `registry` knows them all."""
