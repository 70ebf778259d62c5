# Sourced after setup.sh by scripts/test and .ci/run: runs suites of a build and keeps their results in a folder, one
# file a run, that scripts/tally.py adds up.

# run_suites NAME RESULTS [MESON TEST ARGUMENTS]: the normal suites of build/NAME.
run_suites() {
    local name=$1 results=$2 log
    shift 2
    mkdir -p "$results"
    log=$results/$name-$(ls "$results" | wc -l)
    say "testing build/$name $*"
    rm -f "$TAKT_ROOT/build/$name/meson-logs/"takt-run*.json
    meson test -C "$TAKT_ROOT/build/$name" --no-rebuild --print-errorlogs --num-processes "$(nproc)" \
        --logbase takt-run "$@" || true
    # A run that left no log has failed as a whole.
    if ! cat "$TAKT_ROOT/build/$name/meson-logs/"takt-run*.json > "$log.json" 2>/dev/null; then
        : > "$log.json"
    fi
}

# run_end_to_end NAME RESULTS LONG: the Python tests against build/NAME/takt.
run_end_to_end() {
    local name=$1 results=$2 long=$3 marks=(-m "not long")
    [ "$long" = yes ] && marks=()
    mkdir -p "$results"
    ensure_requirements "$TAKT_ROOT/tests/e2e/requirements.txt"
    if [ "$long" = yes ]; then ensure_requirements "$TAKT_ROOT/tests/e2e/requirements-long.txt"; fi
    say "end-to-end tests against build/$name/takt"
    rm -f "$results/end-to-end.xml"
    (cd "$TAKT_ROOT" && TAKT_PROGRAM=$TAKT_ROOT/build/$name/takt \
        "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests/e2e ${marks[@]+"${marks[@]}"} \
        --junitxml="$results/end-to-end.xml") || true
    [ -f "$results/end-to-end.xml" ] || : > "$results/end-to-end.xml"
}

# Sanitizer builds use clang, which builds them faster, at -O1 with line tables only.
SANITIZER_ARGUMENTS=(--buildtype=plain -Doptimization=1 -Dcpp_args=-gline-tables-only -Db_lundef=false
    -Dcuda=disabled -Dbench=disabled -Dsim_seeds=20)

# The address and undefined-behaviour build also holds the fuzz targets.
configure_asan() { configure asan clang++ "${SANITIZER_ARGUMENTS[@]}" -Db_sanitize=address,undefined -Dfuzz=true; }

# run_fuzzers RESULTS SECONDS: each fuzz target of build/asan for that long, from its committed inputs.
run_fuzzers() {
    local results=$1 seconds=$2 target name passed=0 failed=0 corpus seeds
    for target in "$TAKT_ROOT"/build/asan/tests/fuzz/*_fuzz; do
        [ -x "$target" ] || continue
        name=$(basename "$target")
        corpus=$TAKT_ROOT/build/fuzz/$name
        seeds=$TAKT_ROOT/tests/data/fuzz/$name
        mkdir -p "$corpus"
        say "fuzzing $name for $seconds s"
        if (cd "$corpus" && "$target" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=3000 -timeout=10 \
            -verbosity=0 "$corpus" $([ -d "$seeds" ] && echo "$seeds")) 2>&1 | tail -25; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            say "$name failed; the input is in build/fuzz/$name"
        fi
    done
    printf '%d passed, %d failed\n' "$passed" "$failed" > "$results/fuzz.txt"
}

# print_tally RESULTS: the closing line; fails unless everything passed.
print_tally() { python3 "$TAKT_ROOT/scripts/tally.py" "$1"; }
