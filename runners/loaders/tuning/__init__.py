"""How many workers each stage of a data pipeline gets: what is observed, who decides, and what may never be done."""
