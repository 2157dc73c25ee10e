package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// anyChannel is the line of `ls -la` for an IMEX channel that anybody may open.
var anyChannel = regexp.MustCompile(`(?m)^crw-rw-rw-\s.*\s(channel\d+)$`)

// testChannels has two domains share a node, by a channel each: the first with two pods there and one on the other node.
func testChannels(t *testing.T, e *environment) {
	const domain = `{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: %s},
		spec: {numNodes: %d, channel: {resourceClaimTemplate: {name: %[1]s-channel}}}}`
	workers := e.Workers()
	places := map[string][]string{"shares-a": {workers[0], workers[0], workers[1]}, "shares-b": {workers[0]}}
	daemons := e.daemons(t)
	channels := map[string]string{}
	var uids []string
	var names []string
	for _, name := range []string{"shares-a", "shares-b"} {
		nodes := len(slices.Compact(slices.Clone(places[name])))
		e.apply(t, fmt.Sprintf(domain, name, nodes))
		e.kubectl(t, "wait", "resourceclaimtemplate/"+name+"-channel", "--for=create", inTime)
		var pods []string
		for i, node := range places[name] {
			pod := fmt.Sprintf("%s-%d", name, i)
			e.apply(t, memberOf(pod, node, name+"-channel"))
			pods = append(pods, "pod/"+pod)
			names = append(names, pod)
		}
		e.kubectl(t, append([]string{"wait", "--for=condition=Ready", inTime}, pods...)...)
		e.kubectl(t, "wait", "computedomain/"+name, "--for=jsonpath={.status.status}=Ready", inTime)
		if got := e.domain(t, name); len(got.Status.Nodes) != nodes {
			t.Errorf("%s: status %+v, want %d nodes", name, got.Status, nodes)
		} else {
			uids = append(uids, got.Metadata.UID)
		}
		for _, pod := range pods {
			pod = strings.TrimPrefix(pod, "pod/")
			e.says(t, pod, anyChannel)
			found := anyChannel.FindAllStringSubmatch(e.kubectl(t, "logs", pod), -1)
			if len(found) != 1 || channels[name] != "" && channels[name] != found[0][1] {
				t.Fatalf("%s has the channels %q, and pods of its domain before it %q; want one, the same for all", pod, found, channels[name])
			}
			channels[name] = found[0][1]
		}
	}
	if channels["shares-a"] == channels["shares-b"] {
		t.Errorf("both domains have %s", channels["shares-a"])
	}
	if now := e.daemons(t); !slices.Equal(now, daemons) {
		t.Errorf("IMEX daemons' pods were %v and are %v: a domain starts and ends none", daemons, now)
	}
	uids = append(uids, e.claimUIDs(t, names...)...)
	e.kubectl(t, append([]string{"delete", "pod", inTime}, names...)...)
	e.kubectl(t, "delete", "computedomain", "shares-a", "shares-b", inTime)
	e.nothingLeft(t, uids...)
}

// daemons are the pods with IMEX daemons of ours, once they all run.
func (e *environment) daemons(t *testing.T) (pods []string) {
	t.Helper()
	e.eventually(t, "the IMEX daemons' pods to run", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "--namespace", "gpufabric-system", "get", "pods", "--selector", "app.kubernetes.io/component=imex-daemon",
			"--output", `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].ready}{"\n"}{end}`)
		pods = nil
		running := true
		for line := range strings.Lines(out) {
			uid, ready, _ := strings.Cut(strings.TrimSpace(line), " ")
			pods = append(pods, uid)
			running = running && ready == "true"
		}
		slices.Sort(pods)
		return running, out, err
	})
	return pods
}

// testHostService starts nvidia-imex on both workers as their administrator would, by systemd and with the configuration that the chart's
// README requires, and has two domains share a node by it. nvidia-modprobe makes the capability's device node on real machines.
func testHostService(t *testing.T, e *environment) {
	e.hostService(t, "HostIMEXNotRunning")
	list := ""
	for _, worker := range e.Workers() {
		list += e.kubectl(t, "get", "node", worker, "--output", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`) + `\n`
	}
	for _, worker := range e.Workers() {
		t.Cleanup(func() {
			if out, err := docker.Script(context.WithoutCancel(t.Context()), worker,
				"systemctl stop nvidia-imex 2>/dev/null; rm -rf /etc/nvidia-imex/* /dev/nvidia-caps"); err != nil {
				t.Errorf("stop nvidia-imex on %s: %v: %s", worker, err, out)
			}
		})
		out, err := docker.Script(t.Context(), worker, `mkdir -p /etc/nvidia-imex && cd /etc/nvidia-imex && printf '`+list+`' >nodes_config.cfg &&
			printf '%s\n' IMEX_NODE_CONFIG_FILE=$PWD/nodes_config.cfg IMEX_CMD_ENABLED=1 IMEX_CMD_UNIX_DOMAIN_PATH=$PWD/imex_ctrl.sock >config.cfg &&
			minor=$(awk '/DeviceFileMinor/ {print $2}' /proc/driver/nvidia/capabilities/fabric-imex-mgmt) && mkdir -p /dev/nvidia-caps &&
			mknod /dev/nvidia-caps/nvidia-cap$minor c $(awk '$2 == "nvidia-caps" {print $1}' /proc/devices) $minor &&
			systemd-run --unit=nvidia-imex /usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg`)
		if err != nil {
			t.Fatalf("start nvidia-imex on %s: %v: %s", worker, err, out)
		}
	}
	e.hostService(t, "Ready")
	if t.Failed() {
		return // otherwise every pod of a domain would wait
	}
	testChannels(t, e)
	if got := e.daemons(t); len(got) != 0 {
		t.Errorf("beside the nodes' own daemons %d of gpufabric run", len(got))
	}
}

// hostService waits until the labels of both workers show this state of their own nvidia-imex.
func (e *environment) hostService(t *testing.T, state string) {
	t.Helper()
	e.eventually(t, "the workers to say "+state, func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "nodes", "--selector", "gpufabric.io/host-imex="+state, "--output", "name")
		return len(strings.Fields(out)) == len(e.Workers()), out, err
	})
}
