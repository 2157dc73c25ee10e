package claims

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/limiter"
)

// A claim was made again under its name, while the first one's pod, which was deleted by force, still runs.
func TestSharesOfTwoClaimsOfOneNameHaveSeriesOfTheirOwn(t *testing.T) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	dir := t.TempDir()
	text, err := limiter.Text([]limiter.Limit{{UUID: uuid, Bytes: 1 << 30}}, false)
	if err != nil {
		t.Fatal(err)
	}
	cores, err := limiter.Text([]limiter.Limit{{UUID: uuid, Cores: 50}}, false) // of a GPU without memory: it has no such limit
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "u1_0"), text, 0o600), os.WriteFile(filepath.Join(dir, "u3_0"), cores, 0o600),
		os.WriteFile(filepath.Join(dir, "u2_0"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newShares(Limits{Files: dir, Accounts: filepath.Join(dir, "none")}, func(types.UID) (types.NamespacedName, bool) {
		return types.NamespacedName{Namespace: "default", Name: "c"}, true
	}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, family := range families {
		if family.GetName() != "gpufabric_gpu_share_memory_limit_bytes" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "claim_uid" {
					found[label.GetValue()] = true
				}
			}
		}
	}
	if len(found) != 2 || !found["u1"] || !found["u2"] {
		t.Errorf("series of claims %v, want u1 and u2", found)
	}
}
