-- The name of a shared directory, and whether a runner has found or made its probe there. $1: path.
SELECT name, EXISTS (FROM nodes n WHERE n.shared_place = s.name) FROM shared_places s WHERE path = $1
