UPDATE commits SET number = $1, committed_at = make_timestamp($2)
