package release

import (
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// krewPlugin is a manifest of krew's index, with all fields that the release sets (sigs.k8s.io/krew/pkg/index).
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Files  []struct {
				From string `json:"from"`
				To   string `json:"to"`
			} `json:"files"`
			Bin string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

func TestKrewManifestIsOfTheReleasesArchives(t *testing.T) {
	r := released(t)
	var plugin krewPlugin
	must(t, yaml.UnmarshalStrict(get(t, filepath.Join(r.Out, "krew/gpufabric.yaml")), &plugin))
	if plugin.Metadata.Name != "gpufabric" || plugin.Spec.Version != "v"+version || len(plugin.Spec.ShortDescription) > 50 {
		t.Errorf("the plugin is %s %s, described in %d letters (at most 50)", plugin.Metadata.Name, plugin.Spec.Version,
			len(plugin.Spec.ShortDescription))
	}
	found := map[string]bool{}
	for _, platform := range plugin.Spec.Platforms {
		architecture := platform.Selector.MatchLabels["arch"]
		found[platform.Selector.MatchLabels["os"]+"/"+architecture] = true
		archive := get(t, filepath.Join(r.Out, r.archiveName("gpufabric", architecture)))
		if platform.URI != Source+"/releases/download/v"+version+"/"+r.archiveName("gpufabric", architecture) {
			t.Errorf("%s is fetched from %s", architecture, platform.URI)
		}
		if platform.SHA256 != hexSum(archive) {
			t.Errorf("%s has sum %s, and its archive %s", architecture, platform.SHA256, hexSum(archive))
		}
		parts := map[string]string{}
		must(t, members(parts, "", archive))
		for name, entry := range parts {
			if !strings.HasPrefix(entry, "-") { // krew v0.4.3: internal/download/downloader.go, extractTARGZ
				t.Errorf("%s: %s is no regular file, and krew does not unpack it: %s", architecture, name, entry)
			}
		}
		program := ""
		for _, file := range platform.Files {
			if parts["!"+file.From] == "" {
				t.Errorf("%s: the archive has no %s", architecture, file.From)
			}
			if file.To == platform.Bin {
				program = file.From
			}
		}
		if platform.Bin != "kubectl-gpufabric" || program != "gpufabric" {
			t.Errorf("%s runs %s, which is %q of the archive", architecture, platform.Bin, program)
		}
	}
	if len(found) != 2 || !found["linux/amd64"] || !found["linux/arm64"] {
		t.Errorf("the manifest has platforms %v", found)
	}
}
