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

# A refused allocation is an answer that tests ask for, under a sanitizer too.
export ASAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_summary=1:allocator_may_return_null=1
export TSAN_OPTIONS=allocator_may_return_null=1:suppressions=$TAKT_ROOT/tests/tsan_suppressions.txt

# What a sanitizer has nothing to say about; the same list as of the test setup `sanitized` in tests/meson.build.
UNSANITIZED_SUITES=(gpu long timing install tidy headers truth allocation)

# The address and undefined-behaviour build also holds the fuzz targets.
configure_asan() { configure asan clang++ "${SANITIZER_ARGUMENTS[@]}" -Db_sanitize=address,undefined -Dfuzz=true; }

# The doors run one thread: what a race needs is below them.
configure_tsan() { configure tsan clang++ "${SANITIZER_ARGUMENTS[@]}" -Db_sanitize=thread -Dserver=disabled; }

# build_tests NAME EXCLUDED_SUITES...: builds the test programs of build/NAME that have none of the suites, and the fuzz targets
# where that build has any, but not what no test there runs.
build_tests() {
    local name=$1 targets
    shift
    targets=$(meson introspect "$TAKT_ROOT/build/$name" --tests --targets |
        python3 "$TAKT_ROOT/scripts/test_targets.py" "$TAKT_ROOT/build/$name" "$@") || die "meson introspect failed in build/$name"
    # shellcheck disable=SC2086
    build "$name" $targets
}

# fuzz_one TARGET RESULTS SECONDS [LIBFUZZER ARGUMENTS]: one fuzz target from its committed inputs; what it finds stays in
# build/fuzz/NAME.
fuzz_one() {
    local target=$1 results=$2 seconds=$3 name corpus seeds
    shift 3
    name=$(basename "$target")
    corpus=$TAKT_ROOT/build/fuzz/$name
    seeds=$TAKT_ROOT/tests/data/fuzz/$name
    mkdir -p "$corpus"
    if (cd "$corpus" && "$target" -max_total_time="$seconds" "$@" -print_final_stats=1 -rss_limit_mb=3000 -timeout=30 \
        -verbosity=0 "$corpus" $([ -d "$seeds" ] && echo "$seeds")) > "$results/$name.log" 2>&1; then
        echo "1 passed, 0 failed" > "$results/$name.txt"
    else
        echo "0 passed, 1 failed" > "$results/$name.txt"
        tail -40 "$results/$name.log"
        say "$name failed; the input is in build/fuzz/$name"
    fi
}

# run_fuzzers RESULTS SECONDS [LIBFUZZER ARGUMENTS]: each fuzz target of build/asan for at most that long, one a core.
run_fuzzers() {
    local results=$1 seconds=$2 target num=0
    shift 2
    mkdir -p "$TAKT_ROOT/build/fuzz"
    tar -xJf "$TAKT_ROOT/tests/data/fuzz_corpus.tar.xz" -C "$TAKT_ROOT/build/fuzz" --skip-old-files ||
        say "the kept corpus could not be unpacked"
    for target in "$TAKT_ROOT"/build/asan/tests/fuzz/*_fuzz; do
        [ -x "$target" ] || continue
        say "fuzzing $(basename "$target") for $seconds s"
        fuzz_one "$target" "$results" "$seconds" "$@" &
        num=$((num + 1))
        [ $((num % $(nproc))) -ne 0 ] || wait
    done
    wait
    [ "$num" -gt 0 ] || echo "0 passed, 1 failed" > "$results/fuzz.txt"
}

# print_tally RESULTS: the closing line; fails unless everything passed.
print_tally() { python3 "$TAKT_ROOT/scripts/tally.py" "$1"; }
