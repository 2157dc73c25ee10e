package suite

import "time"

// Short returns the parts of the short suite, which .ci/run runs whole before a change lands. Each limit is about four times what the part
// takes on two idle cores from empty caches: it ends a part that hangs.
func Short() []Part {
	return []Part{
		{Name: "modules", Command: "make modules", Limit: 20 * time.Minute, Low: true},
		{Name: "toolchain", Command: "make toolchain-test", Limit: time.Hour},
		// The cluster's tests and the linters need these, and no other test does. The tests mostly wait, so it is built beside them.
		{Name: "node-image", Command: "make toolchain-kind && go run ./tests/cmd/harness kind image", Limit: time.Hour,
			Needs: []string{"docker", "mmdebstrap"}, After: []string{"modules", "toolchain"}, Low: true},
		{Name: "test", Command: "make --keep-going test SHORT=1", Limit: 80 * time.Minute, Needs: []string{"gcc", "make", "git"},
			After: []string{"modules", "toolchain"}},
		{Name: "rdma-kernel", Command: "make rdma-kernel", Limit: 20 * time.Minute, After: []string{"test"}},
		{Name: "kind-e2e", Command: "make kind-e2e SHORT=1", Limit: time.Hour, Needs: []string{"docker"}, After: []string{"test", "node-image"}},
		// The cluster's tests mostly wait, and the linters compute.
		{Name: "lint", Command: "make lint SHORT=1", Limit: 40 * time.Minute, After: []string{"test", "node-image"}, Low: true},
	}
}

// Long returns the parts of the long suite, one after another: whatever is longer, or breaks seldom.
func Long() []Part {
	docker := []string{"docker", "mmdebstrap"}
	return []Part{
		{Name: "toolchain", Command: "make toolchain", Limit: 3 * time.Hour},
		{Name: "nvidia-programs", Command: "make nvidia-programs", Limit: 15 * time.Minute},
		{Name: "cross", Command: "make cross", Limit: time.Hour, Needs: []string{"aarch64-linux-gnu-gcc"}},
		{Name: "images", Command: "make images", Limit: time.Hour, Needs: []string{"aarch64-linux-gnu-gcc"}},
		{Name: "release", Command: "make test-release WHOLE=1", Limit: 2 * time.Hour, Needs: []string{"aarch64-linux-gnu-gcc", "openssl"}},
		{Name: "isolated", Command: "make isolated", Limit: time.Hour},
		{Name: "lint", Command: "make lint", Limit: 90 * time.Minute},
		// Every package with the race detector, OpenTofu, NVIDIA's programs, changes of computeDomains.imex under use.
		{Name: "test", Command: "make --keep-going test RACE=all", Limit: 5 * time.Hour},
		{Name: "rdma-kernel", Command: "make rdma-kernel", Limit: 20 * time.Minute},
		{Name: "fuzz", Command: "make fuzz FUZZTIME=60s", Limit: 2 * time.Hour},
		{Name: "kind-e2e", Command: "make kind-e2e CHURN=5", Limit: 2 * time.Hour, Needs: docker},
		{Name: "kind-upgrade", Command: "make kind-upgrade", Limit: time.Hour, Needs: docker},
		{Name: "kind-by-demand", Command: "make kind-by-demand", Limit: time.Hour, Needs: docker},
		{Name: "kind-kueue", Command: "make kind-kueue", Limit: time.Hour, Needs: docker},
		{Name: "demo-kind", Command: "make demo && make demo-down", Limit: time.Hour, Needs: docker},
		{Name: "demo-sim", Command: "make demo DEMO=sim && make demo-down", Limit: time.Hour},
		{Name: "test-gangs", Command: "make test-gangs", Limit: 2 * time.Hour},
		{Name: "test-versions", Command: "make test-versions", Limit: 4 * time.Hour},
		{Name: "test-runtimes", Command: "make test-runtimes", Limit: time.Hour, Needs: []string{"runc"}},
		{Name: "test-cert-manager", Command: "make test-cert-manager", Limit: time.Hour},
		{Name: "test-helm4", Command: "make test-helm4", Limit: time.Hour},
		{Name: "upgrade", Command: "make upgrade", Limit: 90 * time.Minute, Needs: []string{"git"}},
		// The page would be a change of the checkout.
		{Name: "test-causes", Command: "cp docs/reports/causes.md .cache/ && make test-causes PAGE=$PWD/.cache/causes.md",
			Limit: 90 * time.Minute},
		{Name: "test-faults", Command: "make test-faults SEEDS=20", Limit: 5 * time.Hour},
		{Name: "soak-domains", Command: "make soak-domains LIMIT=60m", Limit: 3 * time.Hour},
	}
}
