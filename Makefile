# Shorthands. Nothing here is needed: go build ./... and go test ./... do.
# A target of fuzz runs for FUZZTIME.
FUZZTIME ?= 20s
BENCH    ?= .

# No tool may bring a newer Go along.
export GOTOOLCHAIN := local
tool := go tool -modfile=.ci/tools.mod

.PHONY: check test fuzz bench ci tools cases

check:
	test -z "$$(gofmt -l . | tee /dev/stderr)"
	go vet ./...
	$(tool) staticcheck ./...
	go test -race -shuffle=on ./...

test:
	go test ./...

fuzz:
	bash .ci/fuzz $(FUZZTIME)

# Two of its outputs are compared by: go tool -modfile=.ci/tools.mod benchstat OLD NEW
bench:
	@go test -run '^$$' -bench '$(BENCH)' -benchmem -count 6 ./...

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
