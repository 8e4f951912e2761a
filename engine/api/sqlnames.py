"""Functions that ad-hoc SQL may call. What is not named here is refused, so a new DuckDB adds nothing by itself.

Left out on purpose: whatever reads files, settings, secrets or variables, runs other SQL, sleeps, logs, or
calls back (lambdas); what makes large values of small ones in one step that cannot be interrupted
(``repeat``, ``lpad``, scalar ``range``, ``printf``); and what costs the product of two lengths (``levenshtein``).
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _names(
    """
    any_value approx_count_distinct approx_quantile arbitrary arg_max arg_max_null arg_min arg_min_null argmax argmin array_agg avg
    bit_and bit_or bit_xor bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy favg first fsum
    geomean geometric_mean group_concat json_group_array json_group_object kahan_sum kurtosis kurtosis_pop last list listagg mad max
    max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan var_pop var_samp
    variance wavg weighted_avg
    """
)

WINDOWS = _names(
    """
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank rank_dense row_number
    """
)

SCALARS = _names(
    """
    abs acos add age array_contains array_extract array_has array_has_all array_has_any array_length array_position array_slice
    array_to_string ascii asin atan atan2 bit_count cardinality cbrt ceil ceiling century char_length character_length chr concat
    concat_ws constant_or_null contains cos cot current_date current_localtime current_localtimestamp current_time current_timestamp
    date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear
    days_in_month decade degrees divide element_at ends_with epoch epoch_ms epoch_ns epoch_us era even exp fdiv floor fmod
    format_bytes formatreadabledecimalsize formatreadablesize gcd get_current_time get_current_timestamp greatest hash hex hour if
    ilike_escape instr isfinite isinf isnan isodow isoyear json_array json_array_length json_contains json_exists json_extract
    json_extract_path json_extract_path_text json_extract_string json_keys json_object json_type json_valid json_value julian
    last_day lcase lcm least left len length like_escape list_any_value list_avg list_concat list_contains list_count list_distinct
    list_element list_extract list_first list_has list_has_all list_has_any list_indexof list_last list_max list_median list_min
    list_pack list_position list_reverse list_reverse_sort list_slice list_sort list_sum list_unique list_value ln log log10 log2
    lower ltrim make_date make_time make_timestamp make_timestamp_ms map map_contains map_entries map_extract map_extract_value
    map_from_entries map_keys map_values md5 microsecond millennium millisecond minute mod month monthname multiply nanosecond
    not_ilike_escape not_like_escape now nullif ord parse_dirname parse_filename pi position pow power prefix quarter radians random
    regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array replace
    reverse right round round_even row rtrim second sha256 sign sin split split_part sqrt starts_with str_split strftime
    string_split strip_accents strlen strpos strptime struct_extract struct_extract_at struct_pack substr substring subtract suffix
    tan time_bucket timezone to_centuries to_days to_decades to_hours to_json to_microseconds to_millennia to_milliseconds
    to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp translate trim trunc
    try_strptime typeof ucase unicode upper url_decode week weekday weekofyear xor year yearweek
    """
)

#: In FROM, where they stream: as scalars they would build a whole list at once.
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "unnest"})

FUNCTIONS = AGGREGATES | WINDOWS | SCALARS | {"unnest"}

#: Their results can be longer than each argument, so that nesting them grows values exponentially.
GROWING = _names(
    """
    || array_to_string concat concat_ws hex json_array json_object list_concat list_pack list_value map map_from_entries
    regexp_replace replace row strftime struct_pack to_json translate
    """
)
