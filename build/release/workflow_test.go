package release

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

// go.work names the first version of Go that builds. A release of that one would lack the fixes of its library, and two jobs with different
// versions would make different bytes.
func TestReleaseWorkflowNamesOnePatchVersionOfGo(t *testing.T) {
	root, err := repository.Root()
	must(t, err)
	workflow := string(get(t, filepath.Join(root, ".github/workflows/release.yml")))
	var versions []string
	for _, match := range regexp.MustCompile(`(?m)^ +go-version: (\S+)`).FindAllStringSubmatch(workflow, -1) {
		versions = append(versions, match[1])
	}
	if jobs := strings.Count(workflow, "actions/setup-go@"); len(versions) != jobs {
		t.Errorf("%d jobs install Go, and %d name its version", jobs, len(versions))
	}
	minor := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(get(t, filepath.Join(root, "go.work")))
	if minor == nil {
		t.Fatal("go.work names no version of Go")
	}
	versions = slices.Compact(versions)
	if len(versions) != 1 || !regexp.MustCompile(`^`+regexp.QuoteMeta(string(minor[1]))+`\.[1-9]\d*$`).MatchString(versions[0]) {
		t.Errorf("the release is built with Go %v, want one patch version of %s", versions, minor[1])
	}
}
