package kindcluster

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestKindConfigurationAdaptsToMachine(t *testing.T) {
	tests := map[string]struct {
		host    Host
		holds   []string
		without []string
	}{
		"an ordinary machine": {
			Host{},
			[]string{"disableDefaultCNI: false", "config_path", "taints: []", "unsafe-no-fsync"},
			[]string{"failCgroupV1", "oomScoreAdj", "restrict_oom_score_adj", "KubeletInUserNamespace"},
		},
		"cgroup v1": {
			Host{CgroupV1: true},
			[]string{"failCgroupV1: false"},
			[]string{"oomScoreAdj", "KubeletInUserNamespace"},
		},
		"no CAP_SYS_RESOURCE": {
			Host{LacksSysResource: true},
			[]string{"oomScoreAdj: 0", "KubeletInUserNamespace: true", "restrict_oom_score_adj = true"},
			[]string{"failCgroupV1"},
		},
		"a node image without kindnetd": {
			Host{CannotPullKindnetd: true},
			[]string{"disableDefaultCNI: true"},
			[]string{"failCgroupV1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := kindConfiguration(Options{Workers: 2}, test.host)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.holds {
				if !strings.Contains(text, want) {
					t.Errorf("lacks %q:\n%s", want, text)
				}
			}
			for _, not := range test.without {
				if strings.Contains(text, not) {
					t.Errorf("has %q:\n%s", not, text)
				}
			}
			var config kindConfig
			if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
				t.Fatal(err)
			}
			for _, patch := range config.KubeadmConfigPatches {
				if err := yaml.UnmarshalStrict([]byte(patch), &map[string]any{}); err != nil {
					t.Errorf("patch is no YAML: %v\n%s", err, patch)
				}
			}
			if len(config.Nodes) != 3 {
				t.Errorf("%d nodes, want 3", len(config.Nodes))
			}
		})
	}
}

func TestBoundingSetShowsMissingSysResource(t *testing.T) {
	tests := map[string]struct {
		status  string
		missing bool
		bad     bool
	}{
		"every capability":              {"Name:\tx\nCapBnd:\t000001ffffffffff\n", false, false},
		"all but CAP_SYS_RESOURCE":      {"Name:\tx\nCapBnd:\t000001fffeffffff\n", true, false},
		"no such line":                  {"Name:\tx\n", false, true},
		"a line that is no hexadecimal": {"CapBnd:\tmany\n", false, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			missing, err := lacksSysResource(test.status)
			if missing != test.missing || (err != nil) != test.bad {
				t.Errorf("got %v, %v", missing, err)
			}
		})
	}
}

const nodeList = `{"items": [
 {"metadata": {"name": "a"}, "spec": {"podCIDR": "10.244.0.0/24"}, "status": {"addresses": [{"type": "Hostname", "address": "a"}, ` +
	`{"type": "InternalIP", "address": "172.18.0.2"}]}},
 {"metadata": {"name": "b"}, "spec": {"podCIDR": "10.244.1.0/24"}, "status": {"addresses": [{"type": "InternalIP", "address": ` +
	`"172.18.0.3"}]}}]}`

func TestNodesReachTheOthersPodsThroughTheOthersAddresses(t *testing.T) {
	members, err := parseNodes([]byte(nodeList))
	if err != nil {
		t.Fatal(err)
	}
	want := []member{
		{"a", netip.MustParsePrefix("10.244.0.0/24"), netip.MustParseAddr("172.18.0.2")},
		{"b", netip.MustParsePrefix("10.244.1.0/24"), netip.MustParseAddr("172.18.0.3")},
	}
	if diff := cmp.Diff(want, members, cmp.AllowUnexported(member{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Fatal(diff)
	}
	script := members[0].routes(members)
	if !strings.Contains(script, "ip route replace 10.244.1.0/24 via 172.18.0.3\n") {
		t.Errorf("no route to b's pods:\n%s", script)
	}
	if strings.Contains(script, "ip route replace 10.244.0.0/24") {
		t.Errorf("a route to the node's own pods:\n%s", script)
	}
}

func TestClusterNamesANodeWithoutAnAddress(t *testing.T) {
	for name, list := range map[string]string{
		"podCIDR":    `{"items": [{"metadata": {"name": "lonely"}}]}`,
		"InternalIP": `{"items": [{"metadata": {"name": "lonely"}, "spec": {"podCIDR": "10.244.0.0/24"}}]}`,
	} {
		if _, err := parseNodes([]byte(list)); err == nil || !strings.Contains(err.Error(), "lonely") || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: error %v", name, err)
		}
	}
}

func TestFindReportsHowToStartCluster(t *testing.T) {
	_, err := Find("no-such-cluster")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "harness kind up") {
		t.Errorf("error %v", err)
	}
}
