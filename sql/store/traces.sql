-- All traces, as the writer needs them to tell whether one is there already.
SELECT id, name, format, source, sha256, added_by, jobs, dropped, repaired, recipe FROM traces
