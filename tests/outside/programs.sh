# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154
# programs.sh: what became of the tests of a program, for the part() of the suites in tests/outside/suites.
#
# Each function runs COMMAND after the words of the array `under' (empty, or weir run --), for at most $limit seconds (60;
# python_tests 150), and adds lines
# "OUTCOME SECONDS NAME", tab separated, to the file $outcomes: one for each test, and one for the program as a whole,
# called NAME alone: its exit status, and how long it took.

# under_limit NAME COMMAND...: its output goes to the log and to the file output; its outcome is added.
under_limit() {
    local name=$1 start=$EPOCHREALTIME code=0
    shift
    timeout -k 5 "${limit:-60}" "${under[@]}" "$@" >output 2>errors </dev/null || code=$?
    cat output
    cat errors >&2
    case $code in 0) set passed ;; "${waived-}") set skipped ;; *) set failed ;; esac
    [ "$code" -eq 0 ] || echo "$name: exit status $code" >&2
    printf '%s\t%s\t%s\n' "$1" "$(awk "BEGIN { printf \"%.3f\", $EPOCHREALTIME - $start }")" "$name" >>"$outcomes"
}

# program NAME COMMAND...: exit status 0 is passed, 2 is skipped, as the samples of CUDA have it.
program() { waived=2 under_limit "$@"; }

# googletest NAME COMMAND...: the tests of a program with GoogleTest.  One that did not end has failed.
googletest() {
    under_limit "$@" --gtest_color=no
    awk -v program="$1" -v OFS='\t' '
        match($0, /\[ RUN      \] /) { name = substr($0, RSTART + RLENGTH) }
        name != "" && match($0, /\[(       OK |  FAILED  |  SKIPPED )\] /) {
            outcome = substr($0, RSTART + 1, 10)
            ms = match($0, /\([0-9]+ ms\)$/) ? substr($0, RSTART + 1) + 0 : 0
            print outcome ~ /OK/ ? "passed" : outcome ~ /FAILED/ ? "failed" : "skipped", ms / 1000, program "." name
            name = ""
        }
        END { if (name != "") print "failed", 0, program "." name }' output >>"$outcomes"
}

# catch2 NAME COMMAND...: the test cases of a program with Catch2, version 2 or 3.
catch2() {
    under_limit "$@" --reporter xml --durations yes
    awk -v program="$1" -v OFS='\t' '
        function value(key) {
            return match($0, " " key "=\"[^\"]*\"") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 4) : ""
        }
        /<TestCase / {
            name = value("name")
            gsub(/&lt;/, "<", name); gsub(/&gt;/, ">", name); gsub(/&quot;/, "\"", name); gsub(/&amp;/, "\\&", name)
        }
        name != "" && /<OverallResult / {
            print value("success") != "true" ? "failed" : value("skips") + 0 ? "skipped" : "passed",
                sprintf("%.6f", value("durationInSeconds")), program "." name
            name = ""
        }
        END { if (name != "") print "failed", 0, program "." name }' output >>"$outcomes"
}

# googlebenchmark NAME COMMAND...: each benchmark, with the time of one iteration.
googlebenchmark() {
    under_limit "$@" --benchmark_format=csv
    awk -v program="$1" -v OFS='\t' '
        BEGIN { unit["ns"] = 1e-9; unit["us"] = 1e-6; unit["ms"] = 1e-3; unit["s"] = 1 }
        /^"/ {
            name = $0; sub(/^"/, "", name); sub(/".*/, "", name)
            rest = $0; sub(/^"[^"]*",/, "", rest); split(rest, field, ",")
            seen = 1
            print field[8] == "true" ? "failed" : "passed", sprintf("%.9f", field[2] * unit[field[4]]), program "." name
        }
        END { if (!seen) print "failed", 0, program ".any" }' output >>"$outcomes"
}

# python_tests NAME WORD...: tests of pytest, in the folder that it is called in.  One that ended its process has failed.
python_tests() {
    local name=$1
    shift
    [ -z "${python_site-}" ] || export PYTHONPATH=$python_site${PYTHONPATH:+:$PYTHONPATH}
    PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OUTSIDE_OUTCOMES=$outcomes limit=${limit:-150} \
        under_limit "$name" python3 -m pytest -q -p outcomes -p no:cacheprovider --timeout 60 "$@"
    if [ -f "$outcomes.begun" ]; then
        printf 'failed\t0\t%s\n' "$(cat "$outcomes.begun")" >>"$outcomes"
        rm "$outcomes.begun"
    fi
}

# python_packages: installs the suite's wheels where python_tests finds them.
python_packages() {
    python_site=$scratch/site
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$python_site" \
        "$suite"/whl/*.whl
}
