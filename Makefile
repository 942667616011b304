# Everything here needs Go and nothing else.

GO ?= go
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
VERSION ?= 0.1.0-dev
REVISION ?= $(shell git describe --always --dirty --abbrev=12 2>/dev/null)
PKG = github.com/holdfast-dev/holdfast/internal/version
LDFLAGS = -X $(PKG).Version=$(VERSION) -X $(PKG).Revision=$(REVISION)

.PHONY: help build demo test check race crash storm sim sim-mutants cluster vulns bench docs

help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## Build bin/holdfast
	$(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/holdfast ./cmd/holdfast

demo: ## The whole story in under a minute, without key or service
	$(GO) run ./cmd/holdfast demo

test: ## All tests
	$(GO) test -timeout 20m $(TESTFLAGS) ./...

check: ## Vet, staticcheck, formatting, house rules
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) test -run 'TestFloorPlan|TestPackageComments|TestNoSleep' .

race: ## The race detector on rules, rooms and simulation
	$(GO) test -timeout 20m -race -short ./internal/canonjson ./internal/contract ./internal/event ./internal/session ./internal/outbox \
		./internal/workers ./internal/snapshot ./internal/admission ./internal/engine ./internal/lane ./internal/delivery ./internal/live ./internal/sim \
		./internal/httpapi/... ./internal/tokens ./client ./internal/span ./internal/metrics ./internal/otlp ./internal/bus

crash: ## The crash test at length: every append boundary, and 1,000 SIGKILLs at random; writes docs/reliability.md
	$(GO) test ./internal/daemon -run Crash -crash.boundaries=all -crash.acts=all -crash.deaths=1000 \
		-crash.report=$(CURDIR)/docs/reliability.md -timeout 120m -v $(CRASHFLAGS)

storm: ## The storm at length: 10,000 deliveries to receivers that fail in every way, 200 deaths; writes docs/reliability.md (STORMFLAGS: -storm.seed=7)
	$(GO) test ./internal/daemon -run Storm -storm.deliveries=10000 -storm.deaths=200 -storm.cluster=2000 -storm.kills=40 -storm.patience=60m -crash.patience=5m \
		-storm.report=$(CURDIR)/docs/reliability.md -timeout 180m -v $(STORMFLAGS)

sim: ## Histories of several nodes, by seed, until told to stop (SIMFLAGS: -sim.from=1 -sim.count=1000 -sim.nodes=3 -sim.procs=4 -sim.keep=DIR)
	$(GO) test -c -o bin/sim.test ./internal/sim
	cd internal/sim && exec ../../bin/sim.test -test.run Histories -test.timeout 0 -test.v -sim.from=1 -sim.count=0 $(SIMFLAGS)

sim-mutants: ## Guards that are broken on purpose, and how soon the simulation sees each
	$(GO) test ./internal/sim -run Mutants -sim.mutants -timeout 30m -v $(SIMFLAGS)

vulns: ## Known vulnerabilities that the code can reach (govulncheck; VULNFLAGS=-db file:///DIR where there is no way out)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(VULNFLAGS) ./...

cluster: ## The tests on several real nodes and a real PostgreSQL at length: 1,000 runs on a killed node, 50 takeovers (HOLDFAST_TEST_DATABASE names one)
	$(GO) test ./internal/daemon -run Cluster -cluster.active=1000 -cluster.rounds=50 -crash.patience=10m -timeout 60m -v $(CLUSTERFLAGS)

bench: ## Figures of speed and size, beside the floor of the machine; writes docs/performance.md (BENCHFLAGS=-short: two or three minutes; -help: sections)
	$(GO) run -ldflags "$(LDFLAGS)" ./bench -doc docs/performance.md $(BENCHFLAGS)

docs: ## Write the generated reference pages anew
	$(GO) test ./internal/httpapi/openapi -run Descriptions -rewrite # what the reference is made of
	$(GO) test ./internal/event ./internal/httpapi/openapi ./internal/config ./internal/cli ./internal/models ./internal/metrics -run Reference -rewrite
