# gpufabric: the GPU fabric of a Kubernetes cluster. `make help` lists what can be made.
# Tools come from the PATH where their version fits, else from `make toolchain`. GPUFABRIC_RELEASES=off keeps it from their release sites.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

comma := ,
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
MODULES := build drivers fakes provider tests
# Others' programs that tests/conformance shows the fakes.
PEERS := compute-domain-kubelet-plugin gpu-feature-discovery gpu-kubelet-plugin nfd-worker nvidia-ctk nvidia-device-plugin
ISOLATED := build/release tests/e2e tests/simcluster tests/conformance tests/firstday tests/console tests/karpenter drivers/scheduler
GO ?= go
# RACE=all gives every test the race detector, as the long suite does; otherwise packages have it whose code starts goroutines or has locks.
TESTFLAGS := -count=1 -vet=off -timeout $(if $(RACE),150m,60m)$(if $(RACE), -race)
LDFLAGS := -s -w -X gpufabric.io/drivers/program.Version=$(VERSION)
SCHEDULER_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=v1.36.3-gpufabric-$(VERSION)
ARCH ?= $(shell $(GO) env GOARCH)
# gRPC's tracing brings in html/template, which makes the linker keep every exported method of every type: a third of the program.
PROGRAM_FLAGS := -tags grpcnotrace -ldflags "$(LDFLAGS)"

# SHORT=1 is the short suite's part of a target: what is long and rarely breaks is in the long suite. See build/short and tests/suite.
ifdef SHORT
export GPUFABRIC_SHORT := $(SHORT)
endif

# One set of flags for programs, tests and tools, so that Go compiles a package once for all of them; so it is with their dependencies' versions
# (build/toolchain/versions_test.go). With -trimpath, checkouts in several directories share what they compiled.
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

# go-nvml binds deprecated NVML functions too, and gcc says so at length.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# need PROGRAM,REMEDY: one sentence where a prerequisite is missing.
need = command -v $(1) >/dev/null 2>&1 || { echo "make $(or $(MAKECMDGOALS),$@) needs $(1): $(2)" >&2; exit 1; }

# hook DIRECTORY,ENVIRONMENT: NVIDIA's nvidia-cdi-hook in the version of nvcdi that the drivers are built with. The container runtime runs it on the host, so it
# brings its C library along; it loads no library, and so does not do what the linker warns of.
HOOK := github.com/NVIDIA/nvidia-container-toolkit
hook = cd build/toolchain/modules/nvidia-container-toolkit && export GOWORK=off && \
	$(2) CGO_ENABLED=1 $(GO) build -tags osusergo,netgo -o $(CURDIR)/$(1)/nvidia-cdi-hook \
	-ldflags "-s -w -X $(HOOK)/internal/info.version=$$($(GO) list -m -f '{{.Version}}' $(HOOK)) -extldflags '-static -Wl,--no-warnings'" $(HOOK)/cmd/nvidia-cdi-hook && \
	install -m 644 $$($(GO) list -m -f '{{.Dir}}' $(HOOK))/LICENSE $(CURDIR)/$(1)/nvidia-cdi-hook.LICENSE

.PHONY: help
help: ## List the targets under their headings, a sentence each.
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: prerequisites
prerequisites:
	@$(call need,$(GO),install Go 1.26 or later and put it on the PATH)
	@$(call need,gcc,install a C compiler (Debian: apt-get install gcc libc6-dev))
	@$(call need,git,install git (Debian: apt-get install git))
	@mkdir -p bin

##@ Everyday

# The demo builds the programs that it runs and no other: in the simulated cluster neither a scheduler of ours nor an image.
.PHONY: demo
demo: prerequisites ## Show a compute domain form, in kind where Docker runs, else in the simulated cluster (DEMO=sim always).
	@MAKE="$(MAKE)" tests/demo/run $(DEMO)

.PHONY: demo-programs
demo-programs: build-gpufabric build-provider fakes build-simcluster

.PHONY: demo-kind-programs
demo-kind-programs: build-gpufabric build-hook limiter build-provider fakes

.PHONY: demo-down
demo-down: ## Remove what `make demo` made.
	@tests/demo/down

# What a change is checked with while it is made. UNIT_SLOW are packages that take over 20 s; -short leaves out what starts an API server, Terraform or
# another program of others. Results of packages that did not change come from Go's cache, which does not see charts, examples and programs of other
# modules change: `make test` is the proof.
UNIT_SLOW := drivers/gpu/plugin drivers/rdma/controller drivers/rdma/plugin drivers/vgpu/plugin fakes/cuda/cudatest fakes/nvmlstate build/images tests/charts
.PHONY: unit
unit: fakes ## Run the quick tests, results of unchanged packages from Go's cache (no program of others is built; says what it leaves out).
	@echo "left out, see make test: what -short skips, and $(UNIT_SLOW)"
	@$(GO) test -short -vet=off -timeout 5m $$($(GO) list $(MODULES:%=./%/...) | grep -v $(UNIT_SLOW:%=-e '^gpufabric.io/%$$')) | grep -v 'no test files'

# Most of the tests wait for something, so their parts run three at a time. Nothing is taken from Go's cache of results (TESTFLAGS): the tests read charts,
# examples and programs of other modules, whose changes it does not see. `make lint` vets.
.PHONY: test
test: build toolchain-sim ## Run every test that needs no Docker (SHORT=1: the short suite's; RACE=all: every one with the race detector).
	@$(MAKE) --no-print-directory -j 3 test-raced test-plain test-sim charts test-scheduler test-release test-conformance

# The workspace's modules, but for the charts' tests, which are others' code at work (Helm, an API server) and have a target of their own.
.PHONY: test-modules
test-modules: ## Run the tests of the four modules in go.work, but for the charts'.
	@$(MAKE) --no-print-directory test-raced test-plain

# packages raced|plain: the packages of the workspace in whose code goroutines meet, or the others. Those first whose tests take longest: they mostly wait,
# beside the others.
LONGEST := ./provider/... ./drivers/gpu/plugin ./drivers/gpu/limiter
packages = $$($(GO) run ./tests/cmd/suite packages $(1) $(LONGEST) ./drivers/... ./fakes/... ./build/... ./tests/... | grep -v '^gpufabric.io/tests/charts$$')

.PHONY: test-raced
test-raced: fakes toolchain-sim
	@echo "== go test -race $(MODULES)"; export TF_ACC_TERRAFORM_PATH=$$($(GO) run ./build/cmd/toolchain terraform); \
	$(GO) test -race -p 2 $(TESTFLAGS) $(call packages,raced)

.PHONY: test-plain
test-plain: fakes toolchain-sim
	@echo "== go test $(MODULES)"; export TF_ACC_TERRAFORM_PATH=$$($(GO) run ./build/cmd/toolchain terraform); \
	$(GO) test -p 2 $(TESTFLAGS) $(call packages,plain)

# SIM_LONG are packages of minutes, which a short run leaves out.
SIM_LONG := domainsoak modes onenode torture vgpumemory
.PHONY: test-sim
test-sim: build toolchain-sim ## Run the tests on the simulated cluster.
	@echo "== go test tests/simcluster$(if $(SHORT),: without $(SIM_LONG)$(comma) which make test-sim without SHORT=1 runs)"; cd tests/simcluster && export GOWORK=off && \
	$(GO) test $(TESTFLAGS) $$($(GO) list ./... | grep -v $(if $(SHORT),$(SIM_LONG:%=-e '/%$$'),'^$$'))

# The parts that have passed at this commit are not run again, so that a suite that was interrupted goes on where it ended.
.PHONY: test-long
test-long: prerequisites ## Run the long suite, hours, and write docs/reports/evidence-runs.md (PARTS="fuzz cross": these alone; AGAIN=1: those that have passed too).
	@$(GO) run ./tests/cmd/suite long $(if $(AGAIN),--again) $(PARTS)

.PHONY: test-tenants
test-tenants: fakes toolchain-sim ## Attack as a tenant, and with every role's own token, and print what the attacker sees (a minute or two).
	@$(GO) run ./tests/cmd/attacks

.PHONY: test-scheduler
test-scheduler: toolchain-sim ## Run the tests of gpufabric-scheduler.
	@echo "== go test drivers/scheduler"; cd drivers/scheduler && GOWORK=off $(GO) test $(TESTFLAGS) ./...

.PHONY: test-release
test-release: ## Test how a release is made, pushed and compared, on small programs (WHOLE=1: make the whole release twice, on two paths, and compare; RELEASE=dist/0.1.0-rc.1: follow the pages with one that was made).
	@echo "== go test build/release"; cd build/release && GOWORK=off $(GO) test $(TESTFLAGS) $(if $(WHOLE),-tags whole -timeout 110m -run "Whole|ProviderRepository" -v) ./... \
	$(if $(RELEASE),-tags helm4 -run "Page|Cosign" -v -release $(abspath $(RELEASE)))

.PHONY: test-conformance
test-conformance: fakes toolchain-sim ## Show the fakes to others' programs, and to the first day's.
	@echo "== go test tests/firstday"; cd tests/firstday && GOWORK=off $(GO) test $(TESTFLAGS) ./...
	@echo "== go test tests/console"; cd tests/console && GOWORK=off $(GO) test $(TESTFLAGS) ./...
	@$(if $(SHORT),echo "tests/karpenter and tests/conformance are left out: make test-conformance without SHORT=1 builds what they need of others"; exit 0;) \
	echo "== go test tests/karpenter"; (cd tests/karpenter && GOWORK=off $(GO) test $(TESTFLAGS) ./...) && \
	echo "== go test tests/conformance"; $(GO) run ./build/cmd/toolchain $(PEERS) >/dev/null; cd tests/conformance && GOWORK=off $(GO) test $(TESTFLAGS) ./...

.PHONY: nvidia-programs
nvidia-programs: ## Fetch the programs of NVIDIA's that Debian packages, for the tests that show the fakes to them (installs nothing).
	@tests/nvidia-programs

# Builds and runs it: on a machine with a GPU and no cluster. FIRSTDAY takes its flags; bin/gpufabric-firstday -h lists them.
.PHONY: firstday
firstday: firstday-program ## Ask this machine's GPUs, in under ten minutes, whether they are as the drivers and the fakes take them to be.
	bin/gpufabric-firstday $(FIRSTDAY)

.PHONY: firstday-program
firstday-program: fakes
	@mkdir -p bin
	cd tests/firstday && GOWORK=off $(GO) build -ldflags '-s -w' -o ../../bin/gpufabric-firstday .

.PHONY: rdma-kernel
rdma-kernel: prerequisites ## Run the RDMA code on Debian's kernel in an emulated machine (Debian 12 on amd64; needs neither root nor KVM).
	@echo "== go test tests/rdmakernel"; cd tests && $(GO) test $(TESTFLAGS) -tags rdmakernel -v ./rdmakernel/

.PHONY: fuzz
fuzz: prerequisites ## Run every fuzz target for FUZZTIME (15s) each.
	@tests/fuzz $(or $(FUZZTIME),15s)

.PHONY: kind-e2e
kind-e2e: build ## Run the end-to-end tests in a kind cluster (needs Docker; SHORT=1: the short suite's; CHURN=5 has five times 40 pods with slices come and go, not twice 10).
	@$(call need,docker,install Docker and start it (Debian: apt-get install docker.io))
	cd tests/e2e && GOWORK=off $(GO) test -count=1 -timeout $(if $(SHORT),58m,100m) -v . $(if $(CHURN),-churn $(CHURN))

.PHONY: kind-upgrade
kind-upgrade: build ## Upgrade a kind cluster of four workers from the last commit, or FROM=commit, and roll back, with claims, a domain and a pool held (needs Docker).
	@$(call need,docker,install Docker and start it (Debian: apt-get install docker.io))
	dir=$$(mktemp -d) && git worktree add --detach --quiet $$dir $(or $(FROM),HEAD) && $(MAKE) -C $$dir build VERSION=earlier && \
	(cd tests/e2e && GOWORK=off $(GO) test -count=1 -timeout 50m -run 'TestFormsChangeWhileClaimsHaveGPUs|TestRuntimeWithoutCDI' -earlier $$dir -v .); \
	rc=$$?; git worktree remove --force $$dir; exit $$rc

.PHONY: kind-by-demand
kind-by-demand: build ## Have pods of three MIG profiles and whole GPUs come and go in a kind cluster of H100 by demand for ten minutes, or FOR=2m (needs Docker).
	@$(call need,docker,install Docker and start it (Debian: apt-get install docker.io))
	cd tests/e2e && GOWORK=off $(GO) test -count=1 -timeout 60m -run TestLayoutsByDemand -by-demand $(or $(FOR),10m) -v .

.PHONY: kind-kueue
kind-kueue: build ## Place gangs by the real Kueue in a kind cluster of two cliques (needs Docker; the first build of Kueue takes minutes).
	@$(call need,docker,install Docker and start it (Debian: apt-get install docker.io))
	cd tests/e2e && GOWORK=off $(GO) test -count=1 -timeout 40m -run TestKueuePlacesGangsInKind -kueue -v .

.PHONY: test-faults
test-faults: build toolchain-sim ## Run the seeded fault suite on the simulated cluster (SEEDS=20).
	cd tests/simcluster && GOWORK=off $(GO) test -count=1 -p 1 -timeout 240m -tags faults ./faults/... -seeds $(or $(SEEDS),20)

.PHONY: soak-domains
soak-domains: prerequisites toolchain-sim ## Let compute domains come and go on 36 simulated nodes in both modes, and look for what is left (DOMAINS=2000 in each; hours; LIMIT=10m ends each mode early).
	cd tests/simcluster && GOWORK=off $(GO) test -count=1 -timeout 12h -v ./domainsoak/ -nodes 36 -domains $(or $(DOMAINS),2000) -limit $(or $(LIMIT),0)

.PHONY: test-gangs
test-gangs: prerequisites toolchain-sim ## Place gangs by the real Kueue, JobSet and LeaderWorkerSet on the simulated cluster (the first build of Kueue takes minutes).
	@$(GO) run ./build/cmd/toolchain kueue jobset lws >/dev/null
	cd tests/simcluster && GOWORK=off $(GO) test $(TESTFLAGS) -tags gangs ./gangs/

# VERSIONS are minor versions of Kubernetes. 1.37 has every feature gate on, so that the packages of each part run there too. 1.35 does so with its gates
# switched on, as vendors do. A scheduler of 1.34 has other counters.
VERSIONS ?= 1.34 1.35 1.37
GATES := DRADeviceTaints=true,DRAPartitionableDevices=true,DRAConsumableCapacity=true,DRAExtendedResource=true
.PHONY: test-versions
test-versions: prerequisites toolchain-sim ## Run each part against the programs of other versions of Kubernetes (VERSIONS="1.35 1.37"; the first build takes minutes each).
	@set -e; for v in $(VERSIONS); do echo "== Kubernetes $$v"; \
	$(GO) run ./build/cmd/toolchain kube-apiserver-$$v kube-controller-manager-$$v kube-scheduler-$$v >/dev/null; \
	(cd tests/simcluster && export GOWORK=off SIMCLUSTER_KUBERNETES=$$v && $(GO) test $(TESTFLAGS) -p 1 -tags versions ./versions/ ./computedomains/ ./deviceplugins/ && \
	case $$v in 1.35) SIMCLUSTER_GATES=$(GATES) $(GO) test $(TESTFLAGS) -p 1 ./versions/ ./dra/ ./cliques/ ;; \
	1.37) $(GO) test $(TESTFLAGS) -p 1 ./dra/ ./cliques/ ./hostimex/ ;; esac); \
	(cd tests && export TEST_ASSET_KUBE_APISERVER=$$($(GO) run ../build/cmd/toolchain kube-apiserver-$$v) && $(GO) test $(TESTFLAGS) -run 'TestPoliciesLimitRoles|TestPoliciesRefuseWrites' ./charts/); done

.PHONY: test-runtimes
test-runtimes: prerequisites ## Run a claim's container on containerd 1.7 and 2, and compare how they and the doctor read a configuration (root and runc; the first build takes minutes).
	@$(GO) run ./build/cmd/toolchain containerd containerd-shim-runc-v2 containerd-1.7 containerd-shim-runc-v2-1.7 >/dev/null
	cd tests && $(GO) test $(TESTFLAGS) -tags runtimes ./runtimes/

.PHONY: test-cert-manager
test-cert-manager: prerequisites ## Have cert-manager make and renew the webhook's certificate under load (its first build takes minutes).
	@$(GO) run ./build/cmd/toolchain cert-manager-controller cert-manager-cainjector >/dev/null
	cd tests && $(GO) test $(TESTFLAGS) -tags certmanager -run TestCertManagerRenews ./charts/

.PHONY: test-helm4
test-helm4: prerequisites toolchain-sim ## Run the charts and the pages' commands with Helm 4 too, and go between Helm 3 and 4 (the first build of Helm 4 takes minutes).
	@$(GO) run ./build/cmd/toolchain helm helm4 >/dev/null
	cd tests && $(GO) test $(TESTFLAGS) -tags helm4 -run Helm4 ./charts/
	cd build/release && GOWORK=off $(GO) test $(TESTFLAGS) -tags helm4 -run Helm4 .

# The last release, and before the first one the last commit. Up to e0207591 claims' records had another form, which later plugins set aside.
EARLIER = $(or $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null),HEAD)
.PHONY: upgrade
upgrade: build-gpufabric build-scheduler fakes toolchain-sim ## Upgrade simulated clusters from the last release or commit, or FROM=commit, and roll back, with claims, domains, pools and shares held (half an hour).
	dir=$$(mktemp -d) && git worktree add --detach --quiet $$dir $(or $(FROM),$(EARLIER)) && \
	$(MAKE) -C $$dir build-gpufabric build-scheduler VERSION=earlier && \
	(cd tests/simcluster && GOWORK=off $(GO) test $(TESTFLAGS) -tags upgrade -v ./upgrade/ -earlier $$dir); \
	rc=$$?; git worktree remove --force $$dir; exit $$rc

.PHONY: test-causes
test-causes: fakes build-gpufabric toolchain-sim ## Put causes of waiting into the simulated cluster and ask the doctor; writes the table of docs/reports/causes.md, or of PAGE (half an hour).
	cd tests/simcluster && GOWORK=off $(GO) test -count=1 -v -timeout 60m -tags causes ./causes -page $(or $(PAGE),$(CURDIR)/docs/reports/causes.md)

.PHONY: bench
bench: build toolchain-sim ## Measure what docs/reports/measurements.md reports.
	@set -e; export TF_ACC_TERRAFORM_PATH=$$($(GO) run ./build/cmd/toolchain terraform); \
	for m in drivers fakes provider; do echo "== benchmarks of $$m"; (cd $$m && $(GO) test -run '^$$' -bench . -benchmem -benchtime $(or $(BENCHTIME),1s) -timeout 60m ./...); done
	drivers/rdma/bench/compare.sh
	drivers/gpu/bench/compare.sh

.PHONY: bench-kind
bench-kind: build ## Measure bring-up, apply, pods and domains in kind (RUNS=10; needs Docker).
	@$(call need,docker,install Docker and start it (Debian: apt-get install docker.io))
	cd tests/e2e && GOWORK=off $(GO) test -count=1 -timeout 60m -run TestFiguresAreMeasuredInKind -runs $(or $(RUNS),10) -v .

.PHONY: bench-scale
bench-scale: build toolchain-sim ## Measure 18 to 1,008 simulated nodes (NODES="18 72 288 1008").
	cd tests/simcluster && GOWORK=off $(GO) run ./cmd/simcluster bench --nodes "$(or $(NODES),18 72 288 1008)" --out $(CURDIR)/docs/reports
	cd tests/simcluster && GOWORK=off $(GO) run ./cmd/simcluster bench --cliques --nodes "$(or $(NODES),18 72 288 1008)" --out $(CURDIR)/docs/reports
	cd tests/simcluster && GOWORK=off $(GO) run ./cmd/simcluster bench --roles --nodes "$(or $(NODES),18 72 288 1008)" --out $(CURDIR)/docs/reports

# The nodes are objects only. 10,080 of them take some minutes, and 6 GiB.
.PHONY: bench-controller
bench-controller: build toolchain-sim ## Measure the controller of compute domains alone, with 56 and 560 racks (NODES="1008 10080").
	cd tests/simcluster && dir=$$(mktemp -d) && GOWORK=off $(GO) run ./cmd/simcluster bench-controller --dir $$dir --nodes "$(or $(NODES),1008 10080)" --out $(CURDIR)/docs/reports; \
	rc=$$?; rm -rf $$dir; exit $$rc

.PHONY: bench-memory
bench-memory: build toolchain-sim ## Measure the memory of controller, webhook, scheduler and page before objects of 1,008 nodes (NODES=1008; five minutes).
	cd tests/console && NODES=$(or $(NODES),1008) PROGRAMS=$(CURDIR)/bin GOWORK=off $(GO) test -count=1 -timeout 30m -run TestCentralRolesReportResidentMemory -v .

.PHONY: bench-scheduling
bench-scheduling: toolchain-sim ## Measure the scheduler by what nodes publish, 64 to 1,008 nodes (NODES="64 256 1008" ROUNDS=3; an hour or more).
	cd tests/simcluster && dir=$$(mktemp -d) && GOWORK=off $(GO) run ./cmd/simcluster bench-scheduling --dir $$dir --nodes "$(or $(NODES),64 256 1008)" --rounds $(or $(ROUNDS),3) --out $(CURDIR)/docs/reports; \
	rc=$$?; rm -rf $$dir; exit $$rc

# Objects alone: no kubelet, scheduler or plugin runs behind them.
.PHONY: bench-doctor
bench-doctor: prerequisites ## Measure gpufabric doctor's seconds and requests before an API server with 18 and 1,008 nodes (two minutes).
	cd drivers && $(GO) test -run '^$$' -bench Doctor -benchmem -benchtime $(or $(BENCHTIME),5x) -timeout 30m ./doctor/diagnosis

# DEEP are the linters that compute facts of all that a package imports, which golangci-lint keeps for itself: half an hour, where nothing of it is in its
# cache. In the short suite go vet has govet's place: it keeps its facts in Go's build cache. The others read what the compiler has left there.
DEEP := contextcheck,govet,staticcheck,unparam
# With -trimpath, cgo's output in Go's cache names the checkout that made it, and a linter opens the files that it names: so each checkout has its own. Only
# packages that use cgo are made again for it.
lint: export CGO_CPPFLAGS := -DCHECKOUT=$(subst /,_,$(CURDIR))
TAGS := rdmakernel,certmanager,helm4,runtimes
ISOLATED_TAGS := faults,gangs,causes,upgrade,whole
.PHONY: lint
lint: prerequisites pages ## Vet and lint every module, and check the pages: links, commands, reasons, what is generated (SHORT=1: but for the linters that take long).
	@set -e; lint=$$($(GO) run ./build/cmd/toolchain golangci-lint); \
	for m in $(MODULES); do echo "== $(if $(SHORT),go vet and )golangci-lint $$m"; (cd $$m && $(if $(SHORT),$(GO) vet -tags $(TAGS) ./... &&) \
		$$lint run --build-tags $(TAGS) $(if $(SHORT),--disable $(DEEP)) ./...); done; \
	for m in $(ISOLATED); do echo "== $(if $(SHORT),go vet and )golangci-lint $$m"; (cd $$m && export GOWORK=off && $(if $(SHORT),$(GO) vet -tags $(ISOLATED_TAGS) ./... &&) \
		$$lint run --build-tags $(ISOLATED_TAGS) $(if $(SHORT),--disable $(DEEP)) ./...); done
	provider/generate-docs --check
	@echo "== lines of C"; awk 'length > 140 {print FILENAME ":" FNR ": longer than 140 columns"; long = 1} END {exit long}' $$(git ls-files '*.c' '*.h')

# A few seconds: no program of others is built for it.
# The database (https://vuln.go.dev) is not in this repository: VULNDB names another, such as file:///a/copy. Module proxies have its records too
# (golang.org/x/vulndb): VULNDB=module makes a database of the newest.
VULNDB_ADDRESS = $(if $(filter module,$(VULNDB)),file://$(CURDIR)/.cache/vulndb,$(VULNDB))
.PHONY: vulncheck
vulncheck: prerequisites ## Look for known vulnerabilities that the programs can reach (needs an internet, or VULNDB=module for a module proxy's records, or VULNDB=file:///COPY).
	@set -e; check=$$($(GO) run ./build/cmd/toolchain govulncheck); \
	if [ "$(VULNDB)" = module ]; then cd build/toolchain/modules/vulndb; export GOWORK=off; \
		records=$$($(GO) mod download -json golang.org/x/vulndb@latest | sed -n 's/.*"Dir": "\(.*\)",/\1/p'); echo "== $$records"; \
		$(GO) run golang.org/x/vulndb/cmd/indexdb -vulns "$$records/data/osv" -out $(CURDIR)/.cache/vulndb; cd $(CURDIR); unset GOWORK; fi; \
	found=0; for m in $(MODULES) drivers/scheduler; do echo "== govulncheck $$m"; \
		(cd $$m && case $$m in */*) export GOWORK=off;; esac && $$check $(if $(VULNDB),-db $(VULNDB_ADDRESS)) ./...) || found=$$?; done; exit $$found

.PHONY: pages
pages: prerequisites ## Check every Markdown page: links, anchors, commands, walks, reasons, the matrix and its links.
	$(GO) test $(TESTFLAGS) ./tests/pages/ ./tests/attacks/ ./tests/reference/
	$(GO) run ./tests/cmd/pages --check

##@ Building

# What the images and the archives of a release have.
.PHONY: programs
programs: build-hook limiter build-gpufabric build-scheduler fakes

.PHONY: build
build: programs build-provider ## Build gpufabric, gpufabric-node, gpufabric-scheduler, nvidia-cdi-hook, libvgpu.so and the Terraform provider into bin/, fakefabric into fakes/build/.

.PHONY: build-hook
build-hook: prerequisites
	$(call hook,bin,)

.PHONY: build-gpufabric
build-gpufabric: prerequisites
	cd drivers && $(GO) build $(PROGRAM_FLAGS) -o ../bin/ ./cmd/gpufabric ./cmd/gpufabric-node
	@ln -sf gpufabric bin/kubectl-gpufabric

.PHONY: build-provider
build-provider: prerequisites
	cd provider && $(GO) build -ldflags "-s -w -X main.version=$(VERSION)" -o ../bin/terraform-provider-gpufabric .

.PHONY: build-scheduler
build-scheduler: prerequisites
	cd drivers/scheduler && GOWORK=off $(GO) build -ldflags "$(SCHEDULER_LDFLAGS)" -o ../../bin/gpufabric-scheduler ./cmd/gpufabric-scheduler

.PHONY: build-simcluster
build-simcluster: prerequisites
	cd tests/simcluster && GOWORK=off $(GO) build -o ../../bin/simcluster ./cmd/simcluster

.PHONY: build-fakefabric-objects
build-fakefabric-objects: prerequisites ## Build the program of fakefabric objects into bin/.
	cd tests && $(GO) build -ldflags "-s -w" -o ../bin/fakefabric-objects ./cmd/objects

.PHONY: simcluster
simcluster: build build-simcluster ## Build the simulated cluster's command into bin/, and all that it can run.

.PHONY: limiter bench-limiter
limiter: prerequisites ## Build libvgpu.so, which holds containers to their memory of shared GPUs, into drivers/gpu/limiter/build/.
	@$(MAKE) --no-print-directory -C drivers/gpu/limiter/library

bench-limiter: prerequisites ## Measure what a limit costs, over a driver that does nothing, and in 6 minutes how exact percentages of cores are, over the stand-in.
	@$(MAKE) --no-print-directory -C drivers/gpu/limiter/library bench
	cd drivers && $(GO) test $(TESTFLAGS) -v -run TestSharesMeasureEachPercentageOfCores ./vgpu/bench -seconds 30

.PHONY: fakes
fakes: prerequisites ## Build fakefabric and its C libraries into fakes/build/.
	@$(MAKE) --no-print-directory -C fakes

.PHONY: cross
cross: cross-programs ## Build everything that ships for amd64 and arm64 (needs gcc-aarch64-linux-gnu on amd64).
	cd provider && GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) build -ldflags "-s -w -X main.version=$(VERSION)" -o ../bin/arm64/terraform-provider-gpufabric .

.PHONY: cross-programs
cross-programs: prerequisites
	@$(call need,aarch64-linux-gnu-gcc,install the cross compiler (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross))
	@mkdir -p bin/arm64
	$(call hook,bin/arm64,GOOS=linux GOARCH=arm64 CC=aarch64-linux-gnu-gcc)
	cd drivers && GOOS=linux GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc $(GO) build $(PROGRAM_FLAGS) -o ../bin/arm64/ ./cmd/gpufabric ./cmd/gpufabric-node
	cd drivers/scheduler && GOWORK=off GOOS=linux GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc $(GO) build -ldflags "$(SCHEDULER_LDFLAGS)" -o ../../bin/arm64/gpufabric-scheduler ./cmd/gpufabric-scheduler
	$(MAKE) --no-print-directory -C fakes ARCH=arm64 CC=aarch64-linux-gnu-gcc
	$(MAKE) --no-print-directory -C drivers/gpu/limiter/library ARCH=arm64

.PHONY: isolated
isolated: ## Build each module of go.work by itself, with GOWORK=off (the others are built so by their tests).
	@set -e; for m in $(MODULES); do echo "== GOWORK=off go build $$m"; (cd $$m && GOWORK=off $(GO) build -o /dev/null ./...); done

.PHONY: generate
generate: prerequisites ## Write the generated files again: deepcopy, CRDs, the provider's documentation, pages made of the code.
	@set -e; gen=$$($(GO) run ./build/cmd/toolchain controller-gen); cd drivers && \
	$$gen object paths=./api/... && $$gen crd paths=./api/... output:crd:dir=api/crds
	cp drivers/api/crds/*.yaml charts/gpufabric/files/crds/
	provider/generate-docs
	$(GO) run ./tests/cmd/pages

.PHONY: images
images: build cross ## Build the images for amd64 and arm64 into dist/.
	$(GO) run ./build/cmd/images

# It is made in a copy of the commit, with flags of its own, so that neither what lies in the checkout nor the environment is in it.
.PHONY: release
release: prerequisites ## Make a release of the commit that is checked out: VERSION=0.1.0 KEYS=DIRECTORY (none: not signed), into dist/VERSION.
	@$(call need,aarch64-linux-gnu-gcc,install the cross compiler (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross))
	cd build/release && GOWORK=off $(GO) run ./cmd/release build -version "$(VERSION)" -keys "$(if $(filter none,$(KEYS)),none,$(abspath $(KEYS)))" -out $(CURDIR)/dist

.PHONY: release-keys
release-keys: prerequisites ## Make new keys for releases: KEYS=DIRECTORY, in which none are replaced.
	cd build/release && GOWORK=off $(GO) run ./cmd/release keys "$(abspath $(KEYS))"

.PHONY: release-push
release-push: prerequisites ## Push dist/VERSION to a registry: VERSION=0.1.0 REGISTRY=ghcr.io/gpufabric; digests first, tags last.
	cd build/release && GOWORK=off $(GO) run ./cmd/release push $(CURDIR)/dist/$(VERSION) "$(REGISTRY)"

.PHONY: provider-repository
provider-repository: prerequisites ## Write the provider as a repository of its own, as the Terraform registry wants it: DIR=/somewhere/terraform-provider-gpufabric.
	cd build/release && GOWORK=off $(GO) run ./cmd/release provider-repository "$(abspath $(DIR))"

.PHONY: release-lock
release-lock: prerequisites ## Pin the files of Debian's C library that go into the images, in build/release/libraries.lock.
	cd build/release && GOWORK=off $(GO) run ./cmd/release lock

.PHONY: charts
charts: prerequisites toolchain-sim ## Render, lint and check the charts against the API's schemas.
	@echo "== go test tests/charts"; cd tests && $(GO) test $(TESTFLAGS) ./charts/...

.PHONY: toolchain
toolchain: prerequisites ## Have every tool ready: from the PATH where it fits, else from its release site, else built, once, into the cache.
	$(GO) run ./build/cmd/toolchain

.PHONY: toolchain-lock
toolchain-lock: prerequisites ## Write the checksums of the tools' published files into build/toolchain/releases.lock (needs an internet).
	$(GO) run ./build/cmd/toolchain -lock

# A registry, or the way to it, drops one connection of many now and then. What is fetched here first is asked for three times.
.PHONY: modules
modules: ## Fetch every module that the tests compile.
	@fetch() { for try in 1 2 3; do (cd $$1 && shift && "$$@" >/dev/null) && return; echo "modules of $$1: try $$try of 3 failed"; done; return 1; }; \
	set -e; fetch . $(GO) list -deps -test -tags $(TAGS) $(MODULES:%=./%/...); \
	for m in $(ISOLATED); do fetch $$m env GOWORK=off $(GO) list -deps -test -tags $(TAGS),$(ISOLATED_TAGS) ./...; done

# What `make test SHORT=1` runs of others.
.PHONY: toolchain-test
toolchain-test: prerequisites
	@$(GO) run ./build/cmd/toolchain etcd kube-apiserver kube-controller-manager kube-scheduler kubectl terraform >/dev/null

# What `make kind-e2e SHORT=1` and `make lint` run besides, but for what is in the nodes' image.
.PHONY: toolchain-kind
toolchain-kind: prerequisites
	@$(GO) run ./build/cmd/toolchain kind kubectl helm mpi-operator golangci-lint >/dev/null

.PHONY: toolchain-sim
toolchain-sim:
	@$(GO) run ./build/cmd/toolchain etcd kube-apiserver kube-controller-manager kube-scheduler kubectl >/dev/null

.PHONY: clean
clean: ## Remove what was built (the toolchain's cache stays).
	rm -rf bin dist .cache
	@$(MAKE) --no-print-directory -C fakes clean
