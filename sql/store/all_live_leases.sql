-- Every lease that has not ended.
SELECT id FROM leases WHERE state <> 'ended' ORDER BY id
