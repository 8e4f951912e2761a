-- What came of the beginnings of a user's jobs on other data: data sets, kinds of labels, and steps from the backbone over those taken;
-- NULL: it was undone.
SELECT from_data, data, from_labels, labels, CASE WHEN outcome = 'undone' THEN NULL ELSE measured END AS gain
FROM transfers
WHERE owner = $1 AND NOT same_data AND (outcome = 'undone' OR (outcome IN ('kept', 'begun') AND measured IS NOT NULL))
