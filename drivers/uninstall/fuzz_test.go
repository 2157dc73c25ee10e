package uninstall

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/node/host"
)

// Without a cluster it ends with an error, for every input.
func FuzzArguments(f *testing.F) {
	for _, args := range []string{"", "--check", "--check\n--namespace=n\n--driver=a,b", "--node-label=a\n--node-label=b/", "--node-label=\"",
		"--compute-domains\n--node-annotation=", "--check\n--end-compute-domains\n--controller=c\n--namespace=../..", "--driver", "--", "x"} {
		f.Add(args)
	}
	f.Fuzz(func(t *testing.T, args string) {
		for _, help := range []string{"-h", "--help", "__complete"} { // the last is used by shells
			if strings.Contains(args, help) {
				t.Skip("skipped: it asks for help")
			}
		}
		command := Command(host.Host{Getenv: func(string) string { return "" }})
		command.SilenceErrors, command.SilenceUsage = true, true
		command.SetArgs(strings.Split(args, "\n"))
		if err := command.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q did something, without a cluster", args)
		}
	})
}

// Of a node's labels and annotations go those that are named, or begin as a name that ends in a slash, and no other.
func FuzzKeys(f *testing.F) {
	f.Add("nvidia.com/gpu.clique", "nvidia.com/gpu.clique", "zone")
	f.Add("computedomain.gpufabric.io/", "computedomain.gpufabric.io/uid", "computedomain.gpufabric.io")
	f.Add("/", "/a", "a/")
	f.Add("", "", "a")
	f.Add("\xff/", "\xff/\x00", "\"")
	f.Fuzz(func(t *testing.T, named, first, second string) {
		have := map[string]string{first: "1", second: "2"}
		node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: have, Annotations: have}}
		patch := Keys{Labels: []string{named}}.off(node)
		goes := func(key string) bool {
			return key == named || strings.HasSuffix(named, "/") && strings.HasPrefix(key, named)
		}
		if patch == nil {
			if goes(first) || goes(second) {
				t.Errorf("%q: %q and %q stay", named, first, second)
			}
			return
		}
		var said map[string]map[string]map[string]any
		if err := json.Unmarshal(patch, &said); err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
		want := 0
		for key := range have {
			if goes(key) {
				want++
			}
		}
		if len(said) != 1 || len(said["metadata"]) != 1 || len(said["metadata"]["labels"]) > want || len(said["metadata"]["labels"]) == 0 {
			t.Errorf("%q: of %v goes %s", named, have, patch)
		}
		for key, value := range said["metadata"]["labels"] {
			if value != nil {
				t.Errorf("%q is set to %v", key, value)
			}
		}
	})
}
