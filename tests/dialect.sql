SELECT 42, 'duck', NULL, true, 1_000_000, 0xFF, 1e-3, $$a 'quoted' text$$
SELECT pool AS where_it_ran, count(*) FROM jobs GROUP BY pool
SELECT total: sum(gpus), pool FROM jobs GROUP BY ALL
FROM jobs
FROM jobs SELECT name, gpus
SELECT * EXCLUDE (labels, tags) FROM jobs
SELECT * REPLACE (gpus * 2 AS gpus) FROM jobs
SELECT * RENAME (gpus AS slots) FROM jobs
SELECT * LIKE 'n%' FROM jobs
SELECT COLUMNS('g.*') FROM jobs
SELECT COLUMNS(lambda c: c LIKE 'g%') FROM jobs
SELECT min(COLUMNS(* EXCLUDE (labels, tags))) FROM jobs
SELECT COLUMNS(* EXCLUDE (labels, tags, started))::VARCHAR FROM jobs
SELECT max(*COLUMNS('gpus')) FROM jobs
SELECT DISTINCT pool FROM jobs
SELECT DISTINCT ON (pool) pool, name FROM jobs ORDER BY pool, gpus DESC
SELECT jobs FROM jobs
SELECT j.labels.team, j.labels['team'] FROM jobs j
SELECT (labels).team FROM jobs
SELECT labels.* FROM jobs
SELECT unnest(labels) FROM jobs
SELECT unnest({'a': 1, 'b': {'c': 2}}, recursive := true)
SELECT unnest([[1, 2], [3]], max_depth := 2)
SELECT name, unnest(tags) FROM jobs
SELECT tags[1], tags[-1], tags[1:2], tags[2:], 'abcdef'[2:4], 'abcdef'[-2:] FROM jobs
SELECT [1, 2, 3][1:3:2]
SELECT [x * 2 FOR x IN [1, 2, 3] IF x > 1]
SELECT [upper(t) FOR t IN tags] FROM jobs
SELECT list_transform([1, 2, 3], lambda x: x + 1), list_filter([4, 5, 6], lambda x: x > 4), list_reduce([1, 2, 3], lambda a, b: a + b)
SELECT list_transform([1, 2], lambda x, i: x * i), list_apply(tags, lambda t: t || '!') FROM jobs
SELECT list_zip([1, 2], ['a', 'b']), flatten([[1], [2]]), list_distinct([1, 1]), list_unique([1, 1]), list_resize([1], 3)
SELECT list_aggregate([1, 2], 'sum'), list_sum([1, 2]), list_sort([2, 1], 'DESC'), list_grade_up([2, 1]), list_where([1, 2], [true, false])
SELECT list_cosine_similarity([1.0, 2.0], [2.0, 1.0]), array_value(1, 2), array_distance([1.0, 2.0]::FLOAT[2], [2.0, 1.0]::FLOAT[2])
SELECT range(3), generate_series(1, 3), range(DATE '2024-01-01', DATE '2024-01-03', INTERVAL 1 DAY)
SELECT * FROM range(3), generate_series(1, 2) g(n)
SELECT * FROM repeat(42, 3)
SELECT * FROM unnest([1, 2]) WITH ORDINALITY
SELECT {'a': 1}.a, struct_pack(k := 1, v := 'x'), struct_insert({'a': 1}, b := 2), row(1, 'x'), struct_keys({'a': 1})
SELECT MAP {'k': 1}['k'], map(['a'], [1]), map_keys(MAP {'k': 1}), map_from_entries([('k', 1)]), cardinality(MAP {'k': 1})
SELECT union_value(num := 2), union_tag(union_value(num := 2)), union_extract(union_value(num := 2), 'num')
SELECT 'x'.upper().lower(), ('a-b').replace('-', '_').length(), [1, 2].list_sum()
SELECT format('{} of {:.2f}', 'a', 1.5), printf('%05d', 42), lpad('x', 3, '-'), rpad('x', 3, '-'), repeat('ab', 3), bar(5, 0, 10, 20)
SELECT concat_ws('-', 'a', 'b'), 'a' || 'b', split('a,b', ','), string_split_regex('a1b', '[0-9]'), trim('  x '), chr(65), ascii('A'), reverse('ab')
SELECT levenshtein('duck', 'dock'), jaccard('ab', 'abc'), jaro_winkler_similarity('duck', 'dock'), hamming('ab', 'ac'), damerau_levenshtein('ab', 'ba')
SELECT regexp_matches('abc', 'b'), regexp_replace('abc', '(b)', '[\1]'), regexp_extract('abc', '(a)(b)', ['x', 'y']), regexp_extract_all('a1b2', '[0-9]')
SELECT 'abc' LIKE 'a_c', 'abc' ILIKE 'A%', 'abc' NOT LIKE 'b%', 'a%' LIKE 'a$%' ESCAPE '$', 'abc' GLOB 'a*', 'abc' SIMILAR TO '.*b.*', 'abc' ~ '.*b.*'
SELECT 'ducks' ^@ 'du', starts_with('ducks', 'du'), contains('ducks', 'ck'), position('ck' IN 'ducks'), substring('ducks' FROM 2 FOR 3), overlay('ducks' PLACING 'o' FROM 2)
SELECT base64('abc'::BLOB), to_base64('abc'::BLOB), from_base64('YQ=='), hex('abc'), unhex('61'), to_base(5, 2), bin(5), encode('é'), decode('\x61'::BLOB), url_encode('a b')
SELECT md5('a'), sha256('a'), sha1('a'), hash('a', 1), uuid() IS NOT NULL, gen_random_uuid() IS NOT NULL
SELECT strip_accents('é'), nfc_normalize('é'), length_grapheme('é'), bit_length('a'), octet_length('a'::BLOB), unicode('a'), greatest('a', 'b'), least(1, 2)
SELECT 7 // 2, 7 % 2, 7 / 2, 2 ** 3, 2 ^ 3, 5 & 3, 5 | 3, xor(5, 3), ~5, 1 << 3, 8 >> 1, -5 % 3, @(-5), 5!
SELECT round(1.25, 1), round_even(2.5, 0), trunc(1.9), ceil(1.1), gcd(12, 8), lcm(4, 6), factorial(5), gamma(3), cbrt(27), log(100), log2(8), ln(1), exp(0), sign(-1)
SELECT sin(0), atan2(1, 1), sinh(0), degrees(pi()), radians(180), isnan('nan'::DOUBLE), isinf('inf'::DOUBLE), nextafter(1.0, 2.0), even(3.1), fdiv(7, 2), fmod(7, 2)
SELECT bit_count(5), '0101'::BIT, bitstring('1', 4), get_bit('0101'::BIT, 1), set_bit('0101'::BIT, 0, 1), bit_position('1'::BIT, '0101'::BIT)
SELECT current_date, now() > TIMESTAMP '2020-01-01', today() IS NOT NULL, date_trunc('month', DATE '2024-02-29'), date_part('year', DATE '2024-02-29'), date_diff('day', DATE '2024-01-01', DATE '2024-02-01')
SELECT DATE '2024-01-31' + INTERVAL 1 MONTH, TIMESTAMP '2024-01-01 10:00:00' - INTERVAL '2' HOUR, INTERVAL '1 day 2 hours', age(TIMESTAMP '2024-01-01', TIMESTAMP '2023-01-01'), last_day(DATE '2024-02-01')
SELECT strftime(DATE '2024-01-01', '%d.%m.%Y'), strptime('01.02.2024', '%d.%m.%Y'), try_strptime('x', '%Y'), make_date(2024, 1, 1), make_timestamp(2024, 1, 1, 0, 0, 0), epoch_ms(0), to_days(3), monthname(DATE '2024-01-01')
SELECT extract(dow FROM DATE '2024-01-01'), extract('isoyear' FROM DATE '2024-01-01'), time_bucket(INTERVAL 15 MINUTE, TIMESTAMP '2024-01-01 10:07:00'), TIMESTAMP '2024-01-01' AT TIME ZONE 'Europe/Berlin'
SELECT CAST('1' AS INTEGER), '1'::INT, TRY_CAST('x' AS INT), INT '5', 1::DECIMAL(5, 2), 'a'::ENUM ('a', 'b'), [1, 2]::VARCHAR[], {'a': 1}::STRUCT(a VARCHAR), '[1, 2]'::INT[]
SELECT enum_range(NULL::ENUM ('a', 'b')), enum_first(NULL::ENUM ('a', 'b')), typeof(1), typeof([1.5])
SELECT CASE pool WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 0 END, CASE WHEN gpus > 1 THEN 'many' END, if(gpus > 1, 'x', 'y'), ifnull(NULL, 1), coalesce(NULL, 2), nullif(1, 1) FROM jobs
SELECT gpus BETWEEN 1 AND 2, gpus NOT BETWEEN 1 AND 2, gpus IN (1, 2), gpus NOT IN (3), 1 IN [1, 2], gpus IS DISTINCT FROM 1, name IS NOT NULL, true IS TRUE FROM jobs
SELECT TRY(1 // 0), (SELECT max(gpus) FROM jobs), EXISTS (FROM jobs WHERE gpus > 1), NOT EXISTS (FROM jobs WHERE gpus > 9), 2 = ANY (SELECT gpus FROM jobs), 0 < ALL (SELECT gpus FROM jobs)
SELECT name, (SELECT count(*) FROM leases l WHERE l.job = j.name) AS leases FROM jobs j
SELECT ARRAY (SELECT gpus FROM jobs), ARRAY [1, 2]
SELECT * FROM jobs JOIN leases ON leases.job = jobs.name
SELECT * FROM jobs JOIN leases l USING (gpus)
SELECT * FROM jobs NATURAL JOIN leases
SELECT name, since FROM jobs LEFT JOIN leases ON job = name UNION ALL BY NAME SELECT since, job FROM jobs RIGHT JOIN leases ON job = name
SELECT * FROM jobs FULL OUTER JOIN leases ON job = name
SELECT * FROM jobs CROSS JOIN leases
SELECT * FROM jobs SEMI JOIN leases ON job = name
SELECT * FROM jobs ANTI JOIN leases ON job = name
SELECT * FROM jobs ASOF JOIN leases ON leases.job = jobs.name AND jobs.started >= leases.since
SELECT * FROM jobs ASOF LEFT JOIN leases ON jobs.started >= leases.since
SELECT * FROM jobs POSITIONAL JOIN leases
SELECT * FROM jobs, LATERAL (SELECT jobs.gpus + 1 AS more)
SELECT * FROM range(2) t(i), LATERAL (SELECT i + 1) u(j)
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) v(n, s)
VALUES (1, 2), (3, 4)
SELECT * FROM (FROM jobs) AS j(a, b)
SELECT * FROM jobs AS j TABLESAMPLE reservoir(2 ROWS) REPEATABLE (1)
SELECT * FROM jobs TABLESAMPLE 50 PERCENT (bernoulli)
SELECT * FROM jobs USING SAMPLE 2
SELECT * FROM jobs USING SAMPLE 10% (system, 377)
SELECT pool, sum(gpus) FROM jobs GROUP BY pool HAVING sum(gpus) > 1 ORDER BY 2 DESC NULLS LAST
SELECT pool, kind, count(*) FROM jobs GROUP BY ALL ORDER BY ALL
SELECT pool, kind, count(*), grouping(pool) FROM jobs GROUP BY GROUPING SETS ((pool, kind), (pool), ())
SELECT pool, kind, count(*), grouping_id(pool, kind) FROM jobs GROUP BY CUBE (pool, kind)
SELECT pool, kind, count(*) FROM jobs GROUP BY ROLLUP (pool, kind)
SELECT count(*) FILTER (WHERE gpus > 1), sum(gpus) FILTER (gpus < 3), list(name ORDER BY gpus DESC), string_agg(name, ', ' ORDER BY name) FROM jobs
SELECT avg(gpus), median(gpus), mode(pool), quantile_cont(gpus, [0.25, 0.75]), approx_quantile(gpus, 0.5), mad(gpus), entropy(pool), skewness(gpus), kurtosis(gpus) FROM jobs
SELECT arg_max(name, gpus), arg_min(name, gpus, 2), max(gpus, 2), first(name ORDER BY gpus), any_value(pool), bool_and(gpus > 0), bit_or(gpus), product(gpus), geomean(gpus) FROM jobs
SELECT histogram(gpus), approx_count_distinct(pool), approx_top_k(pool, 1), corr(gpus, length(name)), regr_slope(gpus, length(name)), covar_pop(gpus, 1), fsum(gpus), count(DISTINCT pool) FROM jobs
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY gpus), quantile_disc(gpus, 0.5), mode() WITHIN GROUP (ORDER BY pool) FROM jobs
SELECT name, row_number() OVER (), rank() OVER (ORDER BY gpus), dense_rank() OVER (ORDER BY gpus), percent_rank() OVER (ORDER BY gpus), cume_dist() OVER (ORDER BY gpus), ntile(2) OVER (ORDER BY gpus) FROM jobs
SELECT lag(gpus, 1, 0) OVER w, lead(gpus) OVER w, first_value(gpus) OVER w, last_value(gpus IGNORE NULLS) OVER w, nth_value(gpus, 2) OVER w FROM jobs WINDOW w AS (PARTITION BY pool ORDER BY name)
SELECT sum(gpus) OVER (ORDER BY name ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING), avg(gpus) OVER (ORDER BY started RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) FROM jobs
SELECT sum(gpus) OVER (ORDER BY gpus GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES), count(*) FILTER (gpus > 1) OVER (), list(DISTINCT pool) OVER () FROM jobs
SELECT name FROM jobs QUALIFY row_number() OVER (PARTITION BY pool ORDER BY gpus DESC) = 1
WITH wide AS (SELECT * FROM jobs WHERE gpus > 1), wider AS MATERIALIZED (FROM wide), same AS NOT MATERIALIZED (FROM wide) SELECT count(*) FROM wider, same
WITH RECURSIVE fib(n, a, b) AS (SELECT 1, 0, 1 UNION ALL SELECT n + 1, b, a + b FROM fib WHERE n < 10) SELECT * FROM fib
WITH RECURSIVE t(k, v) USING KEY (k) AS (SELECT 1, 0 UNION SELECT k, v + 1 FROM t WHERE v < 5) SELECT * FROM t
SELECT 1 UNION SELECT 2 UNION ALL SELECT 2 EXCEPT SELECT 1 INTERSECT SELECT 2
SELECT 1 AS a EXCEPT ALL SELECT 2 INTERSECT ALL SELECT 1
SELECT 1 AS a UNION BY NAME SELECT 2 AS b
(SELECT name FROM jobs ORDER BY gpus LIMIT 1) UNION ALL (SELECT 'x')
SELECT * FROM jobs ORDER BY gpus DESC NULLS FIRST, name COLLATE NOCASE LIMIT 2 OFFSET 1
SELECT * FROM jobs LIMIT 50%
SELECT * FROM jobs ORDER BY ALL DESC FETCH FIRST 2 ROWS ONLY
SELECT * FROM jobs LIMIT (SELECT 1)
PIVOT (SELECT 'a' AS k, 1 AS v) ON k USING sum(v)
PIVOT jobs ON pool USING sum(gpus) GROUP BY kind
PIVOT jobs ON pool IN ('a', 'b') USING sum(gpus) AS total, max(gpus) AS most GROUP BY kind
PIVOT jobs ON pool, kind USING count(*)
WITH p AS (PIVOT jobs ON pool || '_' || kind USING count(*)) FROM p ORDER BY ALL LIMIT 3
PIVOT jobs ON pool || '_' || kind USING count(*)
SELECT * FROM (PIVOT jobs ON pool IN ('a', 'b') USING count(*) GROUP BY kind)
SELECT * FROM (SELECT pool, kind, gpus FROM jobs) PIVOT (sum(gpus) FOR pool IN ('a', 'b') GROUP BY kind)
WITH j AS (SELECT pool, gpus FROM jobs) SELECT * FROM j PIVOT (sum(gpus) FOR pool IN ('a'))
UNPIVOT (SELECT 1 AS jan, 2 AS feb) ON jan, feb INTO NAME month VALUE sales
UNPIVOT (SELECT 'x' AS id, 1 AS jan, 2 AS feb) ON COLUMNS(* EXCLUDE (id)) INTO NAME month VALUE sales
SELECT * FROM (SELECT 1 AS jan, 2 AS feb) UNPIVOT INCLUDE NULLS (sales FOR month IN (jan, feb))
SELECT '{"a": [1, {"b": 2}]}'::JSON -> '$.a[1].b', '{"a": 1}' ->> 'a', json_extract('{"a": 1}', '$.a'), json_extract('{"a": 1}', ['$.a', '$.b'])
SELECT json_object('a', 1), json_array(1, 'x'), to_json({'a': 1}), json_merge_patch('{"a": 1}', '{"b": 2}'), json_keys('{"a": 1}'), json_type('[1]'), json_array_length('[1, 2]'), json_valid('x'), json_pretty('{}')
SELECT json_structure('{"a": 1}'), json_transform('{"a": 1}', '{"a": "INT"}'), from_json('{"a": 1}', '{"a": "INT"}'), json_contains('[1]', '1'), json_exists('{"a": 1}', '$.a'), json_value('{"a": 1}', '$.a')
SELECT json_group_array(gpus), json_group_object(name, gpus), json_group_structure('{"a": 1}') FROM jobs
SELECT * FROM json_each('{"a": 1}'), json_tree('[1]')
SELECT name, e.* FROM jobs, json_each('{"a": 1}') e
DESCRIBE jobs
DESCRIBE SELECT * FROM jobs
SUMMARIZE jobs
SUMMARIZE SELECT gpus FROM jobs
SHOW TABLES
TABLE jobs
EXPLAIN SELECT * FROM jobs
SELECT 'trailing comma', FROM jobs
SELECT version(), current_schema(), current_database()
SELECT "name" FROM "jobs" WHERE "gpus" >= 1 AND ("pool" = 'a' OR NOT "kind" = 'x')
SELECT i, j FROM range(3) a(i), range(3) b(j) WHERE i < j AND (i, j) <> (0, 1) AND (i, j) IN ((0, 2), (1, 2))
SELECT (1, 2) < (1, 3), row(1, 2) = row(1, 2), {'a': 1} = {'a': 1}, [1] < [2]
SELECT cast(started AS DATE), started::TIME, epoch(started), started + to_minutes(gpus) FROM jobs
