#!/bin/sh
# run.sh INPUTS: builds the fuzzers of the native client's parsers with ASan and UBSan, gives each of them so many inputs,
# and prints how many were run. Ends with an error if one finds something; the input is then in the folder it names.
# TARGETS="decode_reply" runs only that one; SEED=… repeats a campaign.
set -eu
inputs=${1:?how many inputs?}
here=$(cd "$(dirname "$0")" && pwd)
native=$(cd "$here/../../../stream_server/native" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sources=""
for name in bits connection_file convert copy_block crc32 dtype error half json json_text reader text welcome \
    wire_decode wire_encode writer; do
    sources="$sources $native/src/$name.c"
done

# fuzz TARGET CORPUS OPTIONS…
fuzz() {
    target=$1
    corpus=$2
    shift 2
    # shellcheck disable=SC2086
    clang -std=c11 -g -O2 -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
        -I"$native/include" -I"$native/src" "$here/$target.c" $sources -lm -o "$work/$target"
    mkdir "$work/$corpus"
    if ! "$work/$target" -runs="$inputs" -seed="${SEED:-1}" -print_final_stats=1 -verbosity=0 -malloc_limit_mb=4 "$@" \
        -artifact_prefix="${ARTIFACTS:-/tmp}/$target-" "$work/$corpus" "$here/corpus/$corpus" 2> "$work/$target.log"; then
        cat "$work/$target.log" >&2
        return 1
    fi
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$target.log")
    peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$work/$target.log")
    echo "$target: $executed inputs, nothing found, $(find "$work/$corpus" -type f | wc -l) new ones kept, $peak MiB at most"
}

for target in ${TARGETS:-decode_reply parse_connection_file}; do
    case $target in
    decode_reply) fuzz decode_reply replies -max_len=1024 ;;
    parse_connection_file) fuzz parse_connection_file connection_files -max_len=1024 -dict="$here/json.dict" ;;
    esac
done
