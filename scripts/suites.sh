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
    say "end-to-end tests against build/$name/takt"
    rm -f "$results/end-to-end.xml"
    (cd "$TAKT_ROOT" && TAKT_PROGRAM=$TAKT_ROOT/build/$name/takt \
        "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests/e2e ${marks[@]+"${marks[@]}"} \
        --junitxml="$results/end-to-end.xml") || true
    [ -f "$results/end-to-end.xml" ] || : > "$results/end-to-end.xml"
}

# print_tally RESULTS: the closing line; fails unless everything passed.
print_tally() { python3 "$TAKT_ROOT/scripts/tally.py" "$1"; }
