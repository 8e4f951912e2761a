-- What ended jobs measured, by model and GPUs as in policy/jobs.
SELECT hash(model, gpu_count) AS model_on_gpus, seconds_per_step, duration, peak_memory::DOUBLE AS peak_memory FROM profiles
