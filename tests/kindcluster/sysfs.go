package kindcluster

import (
	"context"
	_ "embed"

	"gpufabric.io/tests/docker"
)

// sysHook mounts a fake node's /sys in the containers of that node.
//
//go:embed sysfs/hook.sh
var sysHook string

const sysHookPath = "/kind/bin/mount-fake-sysfs.sh"

// containerSys puts sysHook into the base OCI spec of every node's containers. Nodes without fake hardware have it too. It does
// no harm there, and hardware may be added later.
type containerSys struct{ cluster *Cluster }

func (containerSys) Name() string { return "Fake /sys in the base OCI spec" }

func (s containerSys) Execute(ctx context.Context) error {
	for _, node := range s.cluster.Nodes {
		if err := writeFile(ctx, node, sysHookPath, sysHook); err != nil {
			return err
		}
		// containerd reads the spec when it starts; its containers outlive it. This replaces kind's own hook, which gives every
		// pod a product name of kind's. That hook assumes that the node's /sys is also the container's, and a fake /sys may
		// hide it.
		if _, err := docker.Script(ctx, node, `chmod +x "$HOOK"
jq '.hooks.createContainer = [{"path": $ENV.HOOK}]' /etc/containerd/cri-base.json >/etc/containerd/cri-base.json.new
mv /etc/containerd/cri-base.json.new /etc/containerd/cri-base.json
systemctl restart containerd`, "HOOK="+sysHookPath); err != nil {
			return err
		}
	}
	return nil
}
