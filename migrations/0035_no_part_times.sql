-- Times of the pieces of swapped models: nothing reads them; a plan has those of its parts.

DROP TABLE part_times;
