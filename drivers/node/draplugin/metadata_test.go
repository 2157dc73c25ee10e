package draplugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/atomicfile"
)

// described is a preparation whose devices have a serial number.
func described(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
	prepared, err := inject(ctx, claim, progress)
	prepared.Attributes = func(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"serial": {StringValue: ptr.To("of " + claim.Devices[i].Device)}}
	}
	return prepared, err
}

// metadataBench is a bench whose kind describes its devices.
func metadataBench(t *testing.T, dir string, on bool) *bench {
	t.Helper()
	b := newBench(t, dir, atomicfile.Writer{})
	b.config.Node.DeviceMetadata = on
	b.kind.prepare = described
	return b
}

// left are the claims that have files of metadata.
func (b *bench) left(t *testing.T) (claims []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.dir, "state/metadata"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		claims = append(claims, e.Name())
	}
	return claims
}

//shows:device-metadata
func TestPrepareGivesContainersMetadataOfEachRequest(t *testing.T) {
	b := metadataBench(t, t.TempDir(), true)
	claim := claimOf("u1", "d0")
	results := &claim.Status.Allocation.Devices.Results
	*results = append(*results, (*results)[0], (*results)[0])
	(*results)[1].Device, (*results)[2].Device, (*results)[2].Request = "d1", "d2", "other"
	b.mustPrepare(t, claim)
	text, err := os.ReadFile(b.cdi.Path("u1"))
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Devices []struct {
			Name           string
			ContainerEdits struct {
				Mounts []struct{ HostPath, ContainerPath string }
			}
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	const root = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim-u1/"
	for _, d := range spec.Devices {
		want := map[string][]string{"u1-d0": {root + "r/", "d0", "d1"}, "u1-d1": nil, "u1-d2": {root + "other/", "d2"}}[d.Name]
		if len(want) == 0 && len(d.ContainerEdits.Mounts) == 0 {
			continue
		}
		if len(d.ContainerEdits.Mounts) != 1 || d.ContainerEdits.Mounts[0].ContainerPath != want[0]+driver+"-metadata.json" {
			t.Fatalf("device %s: mounts %v", d.Name, d.ContainerEdits.Mounts)
		}
		text, err := os.ReadFile(d.ContainerEdits.Mounts[0].HostPath)
		if err != nil {
			t.Fatal(err)
		}
		var m v1alpha1.DeviceMetadata
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		devices := m.Requests[0].Devices
		for i, name := range want[1:] {
			if len(devices) != len(want)-1 || devices[i].Name != name || *devices[i].Attributes["serial"].StringValue != "of "+name {
				t.Errorf("device %s: metadata %s", d.Name, text)
			}
		}
	}
	if _, err := b.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "u1"}}); err != nil {
		t.Fatal(err)
	}
	if left := b.left(t); len(left) > 0 {
		t.Errorf("the claim has ended, and files of %v are left", left)
	}
}

func TestPrepareDoesNotWriteMetadataByDefault(t *testing.T) {
	b := metadataBench(t, t.TempDir(), false)
	b.mustPrepare(t, claimOf("u1", "d0"))
	if left := b.left(t); len(left) > 0 {
		t.Errorf("files of %v", left)
	}
	b.kind.prepare = func(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error) {
		prepared, err := described(ctx, claim, progress)
		prepared.Described = true
		return prepared, err
	}
	b.mustPrepare(t, claimOf("u2", "d1"))
	if left := b.left(t); len(left) != 1 {
		t.Errorf("of a device that always has them: files of %v", left)
	}
}

func TestRecoveryRemovesMetadataOfClaimWithoutRecord(t *testing.T) {
	dir := t.TempDir()
	b := metadataBench(t, dir, true)
	for _, uid := range []string{"u1", "u2", "u3"} {
		b.mustPrepare(t, claimOf(uid, "d"+uid))
	}
	if err := os.Remove(filepath.Join(dir, "state/claims/u1.claim")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state/claims/u2.claim"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The pod of a claim whose record cannot be read may run.
	if left := metadataBench(t, dir, false).left(t); len(left) != 2 || left[0] != "u2" || left[1] != "u3" {
		t.Errorf("files of %v are left, want those of u2 and u3", left)
	}
}

func TestPrepareUndoesClaimWhoseMetadataCannotBeWritten(t *testing.T) {
	b := metadataBench(t, t.TempDir(), true)
	if err := os.WriteFile(filepath.Join(b.dir, "state/metadata"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	claim := claimOf("u1", "d0")
	results, err := b.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim})
	if err != nil || results["u1"].Err == nil || b.state.Len() != 0 || b.cdi.Has("u1") || len(b.kind.unprepared) != 1 {
		t.Errorf("%v, %v; records %d, unprepared %d", err, results["u1"].Err, b.state.Len(), len(b.kind.unprepared))
	}
	if err := os.Remove(filepath.Join(b.dir, "state/metadata")); err != nil {
		t.Fatal(err)
	}
	b.mustPrepare(t, claim)
}
