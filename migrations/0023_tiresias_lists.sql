-- Tiresias keeps the lists of its queues, as published, so its key `within` is gone. What was set or found with it goes on without it.

UPDATE policy_settings SET config = json_merge_patch(config, '{"within": null}') WHERE policy = 'tiresias' AND json_exists(config, '$.within');
UPDATE tunings SET before = json_merge_patch(before, '{"within": null}'), after = json_merge_patch(after, '{"within": null}') WHERE policy = 'tiresias';
