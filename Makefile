# `make` prints what there is. Variables go behind the target: make demo ARGS='--machines 200'

# One build setting for every target, so that all of them share one build cache. The tag lets the libvirt provider build
# without libvirt's headers: it loads the library when it starts.
TAGS := libvirt_dlopen
export GOFLAGS := $(strip $(shell go env GOFLAGS) -tags=$(TAGS))

# ARGS go to the program or to go test; KEEP=1 leaves the lab open.
ARGS ?=
KEEP ?=

# The modules of the workspace, and those of the programs that only the work on the code needs (outside go.work).
MODULES = $(shell go list -m -f '{{.Dir}}')
TOOL_MODULES := tools/lint tools/kube/apiserver tools/kube/definitions
GOLANGCI = $(shell GOWORK=off go -C tools/lint tool -n golangci-lint)

.DEFAULT_GOAL := help
.PHONY: help demo lab build test conformance conformance-real-libvirt conformance-real-kubevirt histories test-real bench race lint fmt tidy generate report verify clean

help: ## Print this list.
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables\n  ARGS=...        more arguments for demo, lab, test, test-real, bench and race\n  KEEP=1          make lab leaves everything running and prints how to look around\n'

##@ See it work
demo: ## Fake Omni, in-memory cloud, simulated machines: a life in ten seconds. ARGS='--machines 200' works.
	go run ./tools/cmd/demo $(ARGS)

lab: ## The same story on a private libvirtd with real guests. Installs libvirt and QEMU on Debian if missing.
	./tools/real/setup.sh
	go run ./tools/cmd/lab $(if $(KEEP),-keep) $(ARGS)

##@ Build and test
build: ## Build every program into bin/.
	go build -o bin/ $(shell go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' work)

test: ## All tests that need nothing but Go, gcc and git: no root, nothing installed.
	go test -timeout 40m $(ARGS) work

conformance: ## The conformance suite on the reference provider, case by case. ARGS="-run '/crash'" selects.
	go test ./providers/memory -run 'TestConformance$$' -v -count 1 $(ARGS)

conformance-real-libvirt: ## The same cases on the libvirt provider with a private libvirtd and QEMU, a part of make test-real. ARGS='-points 20 -seed 7' plays more.
	./tools/real/setup.sh
	go test -tags '$(TAGS) real' ./providers/libvirt -run '^TestConformanceOn' -v -count 1 -timeout 60m $(ARGS)

conformance-real-kubevirt: ## The same cases on the KubeVirt provider with a real Kubernetes API server and etcd (built from source on first use), a part of make test-real.
	KUBE_PROGRAMS=$$(tools/kube/build.sh) && export KUBE_PROGRAMS && go test -tags '$(TAGS) real' ./providers/kubevirt -run '^TestConformanceOn' -v -count 1 -timeout 60m $(ARGS)

histories: ## 10,000 random histories of wishes and faults on the reference provider. ARGS='-first-seed 10000' plays others.
	GODEBUG=adaptivestackstart=1 go test ./providers/memory -run TestRandomHistories -v -count 1 -timeout 3h -seeds 10000 $(ARGS)

test-real: ## The tests against a real libvirtd, QEMU and Kubernetes API server. Says what it installs, and fails when something is missing.
	./tools/real/setup.sh
	./tools/real/test.sh $(ARGS)

bench: ## This library beside the official one: time, calls to Omni and memory per machine. About half an hour; ARGS='-bench Libraries/100-' is short.
	go test -run '^$$' -bench Libraries -benchtime 1x -timeout 90m $(ARGS) ./providers/memory/internal/official

race: ## All tests of make test under the race detector (a cold build takes long).
	go test -race -timeout 40m $(ARGS) work

##@ Keep it in order
lint: ## go vet, gofmt and golangci-lint (built from its source on first use).
	go vet -tags '$(TAGS) real' work
	@echo 'gofmt -l .' && test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GOLANGCI) run --config tools/lint/golangci.yml $(MODULES:%=%/...)

fmt: ## Format every Go file.
	gofmt -l -w .

tidy: ## Tidy every module, each on its own.
	for m in $(MODULES) $(TOOL_MODULES); do GOWORK=off go -C $$m mod tidy || exit 1; done

generate: ## Make generated files anew (schemas, golden files of code).
	go generate work

report: ## Run the conformance suite on every provider, and make conformance/reports and the tables in the READMEs anew.
	CONFORMANCE_REPORT=$(CURDIR)/conformance/reports go test $(shell grep -rl 'conformance\.Run' --include '*_test.go' providers | xargs -n 1 dirname | sed 's,^,./,' | sort -u) -run '^(TestConformance|TestOfficialLibrary)$$' -count 1 || failed=1; \
	go run ./tools/cmd/support-table && exit $${failed:-0}

verify: fmt tidy generate ## Prove that fmt, tidy and generate leave no diff, and that each module builds without go.work.
	for m in $(MODULES); do GOWORK=off go -C $$m build ./... || exit 1; done
	@test -z "$$(git status --porcelain)" || { git status --short; git diff; echo 'verify: commit these changes'; exit 1; }

clean: ## Remove what make build made.
	rm -rf bin
