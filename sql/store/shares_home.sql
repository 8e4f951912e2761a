-- Runners that have the same home and have not gone.
SELECT o.id FROM nodes n JOIN nodes o ON o.host = n.host AND o.home = n.home AND o.id <> n.id WHERE n.id = $1 AND o.state <> 'gone'
