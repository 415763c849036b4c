#!/bin/sh
# build.sh TARGET PROGRAM: builds the fuzzer of one parser of the native client, with ASan and UBSan.
set -eu
target=${1:?which target?}
program=${2:?where to?}
here=$(cd "$(dirname "$0")" && pwd)
native=$(cd "$here/../../../stream_server/native" && pwd)

sources=""
for name in address bits connection_file convert copy_block crc32 dtype error json reader text wire_decode wire_encode \
    writer; do
    sources="$sources $native/src/$name.c"
done

# shellcheck disable=SC2086
exec clang -std=c11 -g -O2 -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
    -I"$native/include" -I"$native/src" "$here/$target.c" $sources -lm -o "$program"
