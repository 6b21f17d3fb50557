#!/usr/bin/env bash
# Prints the tables of docs/performance.md, measured on this machine: all of them in
# some ten minutes, or the sections that are named.
#
#   scripts/perf-tables.sh [limits tcp strided shm connections plan rooms large peers]
#
# RUN is put before each measurement, such as RUN="flock /tmp/lock". KVFERRY is the
# binary; without it one is built.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KVFERRY:-}" ]; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	KVFERRY=$dir/kvferry
	go build -o "$KVFERRY" ./cmd/node
fi

# run measures, and prints the command and its table as a block of code.
run() {
	printf '\n    $ kvferry %s\n' "$*"
	# shellcheck disable=SC2086 # RUN is words
	${RUN:-} "$KVFERRY" "$@" 2>/dev/null | sed 's/^\(.\)/    \1/'
}

# plan prints a row of a table: what is varied, then what bench plan says.
plan() {
	local name=$1 json v
	shift
	# shellcheck disable=SC2086
	json=$(${RUN:-} "$KVFERRY" bench plan "$@" -o json)
	printf '| %s |' "$name"
	for v in records runs build_us wire_bytes expanded_records expanded_us; do
		printf ' %s |' "$(sed -E "s/.*\"$v\":([0-9]+).*/\1/" <<<"$json")"
	done
	echo
}
plans() {
	printf '\n| %s | records | runs | build, us | wire, bytes | rows | rows written out, us |\n|---|---|---|---|---|---|---|\n' "$1"
}

limits() { run bench limits --seconds 0.15; }
tcp() { run bench transport --provider tcp --block 512,2KiB,4KiB,16KiB,64KiB,1MiB --seconds 0.35 --rounds 5; }
strided() { run bench transport --provider tcp --rows strided --block 512,1KiB,2KiB,4KiB --seconds 0.35 --rounds 5; }
shm() { run bench transport --provider shm --block 512,2KiB,4KiB,16KiB,64KiB,1MiB --seconds 0.25 --rounds 5; }
connections() {
	for n in 1 2 4 8; do
		run bench transport --provider tcp --block 4KiB,64KiB --connections "$n" --seconds 0.35 --rounds 5
	done
}
plan_tables() {
	plans "tokens"
	for n in 1024 4096 16384 65536 262144 1048576; do plan "$n" --tokens "$n"; done
	plans "pages together"
	for n in 1 2 4 16 64 4096; do plan "$n" --together "$n"; done
	plans "tokens of a page, TP 2 to 4, 131,072 tokens"
	for n in 1 16 64 256; do plan "$n" --prefill "tp=2,page=$n" --decode "tp=4,page=$n"; done
	plans "TP, prefill to decode"
	for n in "1 1" "2 4" "4 2" "8 1" "1 8" "8 8"; do plan "${n/ / to }" --prefill "tp=${n% *},page=64" --decode "tp=${n#* },page=64"; done
	plan "2 to 4, HND, pages of 16 and 64" --prefill tp=2,page=16 --decode tp=4,page=64,layout=hnd
}
rooms() {
	run bench rooms --in-flight 1,4,16,64,256,1024 --seconds 0.7
	for n in 16 256 4096 65536; do run bench rooms --in-flight 1,64 --tokens "$n" --seconds 0.5; done
}
large() {
	for p in shm tcp; do run bench rooms --bytes 1GiB --provider "$p" --seconds 2 --rounds 5; done
}
peers() {
	printf '\n| decode nodes | seconds | GB/s | p50, ms | p99, ms |\n|---|---|---|---|---|\n'
	for n in 1 2 4 8; do
		# shellcheck disable=SC2086
		${RUN:-} "$KVFERRY" demo --rooms 64 --layers 8 --decode-instances "$n" --provider tcp |
			awk -v n="$n" '/ rooms +moved +seconds/ { getline; printf "| %d | %s | %s | %s | %s |\n", n, $4, $5, $6, $8 }'
	done
}

for section in ${*:-limits tcp strided shm connections plan rooms large peers}; do
	case $section in
	limits | tcp | strided | shm | connections | rooms | large | peers) "$section" ;;
	plan) plan_tables ;;
	*)
		echo "there is no section $section" >&2
		exit 1
		;;
	esac
done
