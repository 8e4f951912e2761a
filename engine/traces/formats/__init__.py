"""The public trace formats, a module for each family; `known_formats` lists them all."""
