-- What ended jobs of a model measured on so many GPUs: seconds a step, and of the whole job. $1: model, $2: GPUs.
SELECT min(seconds_per_step) AS pace, avg(duration) AS duration FROM profiles WHERE model = $1 AND gpu_count = $2
