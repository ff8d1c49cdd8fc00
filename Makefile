# Shorthands. Nothing here is needed: go build ./... and go test ./... do.
# A target of fuzz runs for FUZZTIME.
FUZZTIME ?= 20s
BENCH    ?= .

# make crash SEED=7 repeats the choices of a run.
export STENO_SEED := $(SEED)

# No tool may bring a newer Go along.
export GOTOOLCHAIN := local
tool := go tool -modfile=.ci/tools.mod

.PHONY: check test fuzz model crash power damage queue bench peers bench-peers ci tools cases

check:
	test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./...
	$(tool) staticcheck ./...
	go test -race -shuffle=on ./...

test:
	go test ./...

fuzz:
	bash .ci/fuzz $(FUZZTIME)

# The long amounts of the fault tests: every interleaving; kills, stops and
# take-overs of real processes; power cuts and failing disks (as root, with
# mkfs.ext4, mkfs.xfs and mkfs.btrfs, those of real file systems too); every bit
# and byte, lines, blocks and segments, and logs of 10 GiB, which need that much
# room in TMPDIR.
model:
	bash .ci/try long 'Model'

crash:
	bash .ci/try long 'Storm|Progress'

power:
	bash .ci/try long 'Power|RealSync'

# 10,000 queued calls, with kills of their executors and restarts of the server.
queue:
	cd executor && STENO_TRY=long go test -count=1 -timeout 1h -run 'QueuedCallsStorm'

damage:
	bash .ci/try long 'Flipped|Truncation|Surgery'
	cd cmd/steno && STENO_TEST_HUGE=1 go test -count=1 -timeout 1h -v -run 'LittleMemory'

# A table with the medians of five runs. To compare two states of the code:
# make -s bench BENCHOUT=OLD, the same as NEW, then
# go tool -modfile=.ci/tools.mod benchstat OLD NEW
# BENCH=EXPRESSION runs only those whose names match; COUNT=1 is a quick look.
COUNT    ?= 5
BENCHOUT ?= /dev/null
measure := go test -run '^$$' -benchmem -count $(COUNT) -timeout 1h
bench:
	@{ $(measure) -bench '$(BENCH)' -skip '^BenchmarkMany' ./... && if [ '$(BENCH)' = . ]; then \
	$(measure) -bench '^BenchmarkManyHeld$$' -benchtime 10000x ./executor && \
	$(measure) -bench '^BenchmarkManyTakenOver$$' -benchtime 1000x ./journal && \
	$(measure) -bench '^BenchmarkManyListed$$' -benchtime 100000x ./journal; fi; } | \
	tee $(BENCHOUT) | go run ./.ci/benchreport

# Other ways to record calls, which steno is measured against: modules of their
# own in testdata/peers. What it takes stands at the head of the script. The
# first builds them, the second measures steno and them in the same rounds,
# about four minutes a round.
peers:
	testdata/peers/run build

bench-peers:
	@testdata/peers/run

ci:
	bash .ci/run

# Builds staticcheck, govulncheck, benchstat, nats and indexdb into bin/.
tools:
	GOBIN=$(CURDIR)/bin go install -modfile=.ci/tools.mod tool

# Writes the fault cases anew, by a program that is no part of this repository:
# make cases GEN=path/to/gen.py. Tests read only what it has written.
cases:
	test -n "$(GEN)"
	find testdata/cases -mindepth 1 -maxdepth 1 -type d -exec rm -r {} +
	PYTHONDONTWRITEBYTECODE=1 python3 $(GEN) testdata/cases
