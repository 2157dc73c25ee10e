package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// unprepare unprepares a claim as the kubelet does, and returns its error.
func (n *node) unprepare(claim *drapb.Claim) string {
	n.t.Helper()
	connection, err := grpc.NewClient("unix:"+filepath.Join(n.kubelet.Root(), "plugins/rdma.gpufabric.io/dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	answer, err := drapb.NewDRAPluginClient(connection).NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	return answer.GetClaims()[claim.GetUid()].GetError()
}

// Pods with claims end on a node whose driver is gone: a driver cannot be upgraded, and a node not be drained, otherwise.
func TestReleaseEndsAClaimWhenTheDriverIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(n *node, cut *atomic.Bool) error
		runs   bool // the role runs on when that happens
	}{
		"no driver": {damage: func(n *node, _ *atomic.Bool) error {
			return os.RemoveAll(filepath.Join(n.tree.Sys, "class/infiniband"))
		}},
		"half a driver": {damage: func(n *node, _ *atomic.Bool) error {
			return os.RemoveAll(filepath.Join(n.tree.Sys, "class/infiniband_verbs"))
		}},
		"driver gone under it": {runs: true, damage: func(n *node, _ *atomic.Bool) error {
			return os.RemoveAll(filepath.Join(n.tree.Sys, "class/infiniband"))
		}},
		"no /sys": {damage: func(n *node, _ *atomic.Bool) error { return os.RemoveAll(n.tree.Sys) }},
		"no /dev": {damage: func(n *node, _ *atomic.Bool) error { return os.RemoveAll(n.tree.Dev) }},
		"no API server": {damage: func(_ *node, cut *atomic.Bool) error {
			cut.Store(true)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.two()
			client := n.withAPI()
			// A reactor cannot be added while requests run, and the role's last ones may end after it.
			var cut atomic.Bool
			client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
				return cut.Load(), nil, errors.New("connection refused")
			})
			n.start()
			claim := claimed(t, client, "u1", "", "pci-0000-5e-00-0-1")
			if _, problem := n.prepare(claim); problem != "" {
				t.Fatal(problem)
			}
			if files, err := filepath.Glob(filepath.Join(n.options.StateDir, "claims", "u1*")); err != nil || len(files) != 1 {
				t.Fatalf("records of the claim: %v (%v), want one", files, err)
			}
			if !c.runs {
				n.stop()
			}
			if err := c.damage(n, &cut); err != nil {
				t.Fatal(err)
			}
			if !c.runs {
				n.start()
			}
			if problem := n.unprepare(claim); problem != "" {
				t.Errorf("the pod of the claim cannot end: %s", problem)
			}
			for _, left := range []string{filepath.Join(n.options.CDIRoot, "*u1*"), filepath.Join(n.options.StateDir, "claims", "u1*")} {
				if files, err := filepath.Glob(left); err != nil || len(files) > 0 {
					t.Errorf("%v are left (%v)", files, err)
				}
			}
		})
	}
}
