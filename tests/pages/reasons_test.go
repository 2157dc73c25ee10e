package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpufabric.io/drivers/doctor/findings"
)

const troubleshooting = "docs/troubleshooting.md"

// word matches a reason of a condition or an Event.
var word = regexp.MustCompile(`^[A-Z][A-Za-z]*[a-z][A-Za-z]*$`)

// noReasons are words of the drivers' code that look like reasons but are not: kinds, values of fields, names of other
// projects.
var noReasons = map[string]string{
	"kinds of objects that autoscalers read, and their taints": "DeletionCandidateOf DynamicResourceTemplate ResourceSlice ToBeDeletedBy",
	"kinds of objects": "ComputeDomain ComputeDomainList ComputeDomainChannelConfig ComputeDomainDaemonConfig DaemonSet DeviceMetadata " +
		"GpuConfig IPPoolList JobSet LeaderWorkerSet MIGLayout MPIJob MigDeviceConfig NetworkAttachmentDefinitionList NicClusterPolicy Node " +
		"NodeList RDMAConfig RDMAPool ResourceClaim StatefulSet VGPUProfile VfioDeviceConfig",
	"types of conditions": "CertificatesRenewable Conflicting DaemonsCurrent Degraded GPUDriver GPUForms NetworkExhausted Progressing Ready",
	"values of fields": "Allocated Binpack Clique Default Exclusive Host LegacyOnly List Long Medium None NotReady Pool " +
		"PreferIommuFD Shared Short Single Software Spread TimeSlicing",
	"names of functions, series, files": "DeviceFileMinor DeviceGetCount HostCoreUtilization HostGPUMemoryUsage ImexChannelCount Model " +
		"NodeName SystemGetDriverVersion",
	"headers of HTTP":             "Allow Authorization Bearer Connection",
	"feature gates of Kubernetes": "DRAConsumableCapacity DRADeviceTaints DRAPartitionableDevices",
	"plugins of the scheduler":    "GPUFabricDynamicResources GPUFabricPreemption GPUFabricVGPU",
	"states of ports and links": "Disabled Down Ethernet Failing InfiniBand Init LinkErrorRecovery LinkUp Polling " +
		"PortConfigurationTraining Shutdown Sleep Unknown",
	"states of daemons, nodes and claims": "Domain Free Held Joined NoFabric Preparing Recovering Refused " +
		"Releasing Starting",
	"reasons of the kubelet, which the status of a NicClusterPolicy repeats": "ContainerCreating CrashLoopBackOff PodInitializing",
}

// literals are the strings of the drivers' code, without tests and their helpers.
func literals(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{} // string: its place in the code
	set := token.NewFileSet()
	err := filepath.WalkDir(filepath.Join(root, "drivers"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// The doctor reads reasons of all programs. Its own words are in its table of findings.
		if entry.IsDir() && (strings.HasSuffix(entry.Name(), "test") || entry.Name() == "doctor") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					found[text] = relative + ":" + strconv.Itoa(set.Position(l.Pos()).Line)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestTroubleshootingHasAnEntryForEachReason treats every word of the drivers' code that could be a reason as one, unless noReasons
// has it. So a reason cannot be added, wherever it is written, without its entry.
func TestTroubleshootingHasAnEntryForEachReason(t *testing.T) {
	root := root(t)
	entries := headings(t, root)
	known := map[string]bool{}
	for _, words := range noReasons {
		for _, w := range strings.Fields(words) {
			known[w] = true
		}
	}
	used := map[string]bool{}
	for text, at := range literals(t, root) {
		if !word.MatchString(text) || len(text) < 4 {
			continue
		}
		used[text] = true
		if !known[text] && !entries[text] {
			t.Errorf("%s: the reason %s has no entry: add \"### %s\" to %s (what it means, what to do), or say in noReasons of this test "+
				"what the word is", at, text, text, troubleshooting)
		}
		if known[text] && entries[text] {
			t.Errorf("%s has an entry for %s, which noReasons says is no reason", troubleshooting, text)
		}
	}
	for entry := range entries {
		if _, finding := findings.Find(entry); word.MatchString(entry) && !used[entry] && !finding {
			t.Errorf("%s has an entry for %s, which no driver says any more", troubleshooting, entry)
		}
	}
	for w := range known {
		if !used[w] {
			t.Errorf("noReasons has %s, which no driver's code has any more: remove it", w)
		}
	}
	if len(used) < 80 {
		t.Errorf("only %d words were found", len(used))
	}
}

// headings are the titles of the entries.
func headings(t *testing.T, root string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, l := range lines(read(t, root, troubleshooting)) {
		if title, ok := strings.CutPrefix(l.text, "### "); ok && !l.code {
			out[title] = true
		}
	}
	return out
}

func read(t *testing.T, root, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestTroubleshootingHasAnEntryForEachTaint takes constants with taint in their name or comment, and the kinds of faults.
func TestTroubleshootingHasAnEntryForEachTaint(t *testing.T) {
	root := root(t)
	entries := headings(t, root)
	named := regexp.MustCompile(`(?m)^\s*(?:const )?(?:\w*Taint\w*)\s*=\s*"([a-z.-]+/[a-z-]+)"`)
	kinds := regexp.MustCompile(`(?m)^\s*\w+ FaultKind = "([a-z]+)"`)
	found := 0
	for _, path := range goFiles(t, root, "drivers") {
		content := read(t, root, path)
		var keys []string
		for _, match := range named.FindAllStringSubmatch(content, -1) {
			keys = append(keys, match[1])
		}
		if strings.Contains(content, "func (f Fault) Taint()") {
			for _, match := range kinds.FindAllStringSubmatch(content, -1) {
				keys = append(keys, "gpu.nvidia.com/"+match[1])
			}
		}
		for _, key := range keys {
			found++
			if !entries[key] {
				t.Errorf("%s: the taint %s has no entry in %s", path, key, troubleshooting)
			}
		}
	}
	if found < 7 {
		t.Errorf("only %d taints were found", found)
	}
}

// goFiles are the files of a directory's programs, without tests.
func goFiles(t *testing.T, root, directory string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		relative, err := filepath.Rel(root, path)
		out = append(out, relative)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTroubleshootingHasAnEntryForEachRefusalOfTheChart takes the messages of the chart's checks and its admission policies.
func TestTroubleshootingHasAnEntryForEachRefusalOfTheChart(t *testing.T) {
	root := root(t)
	page := read(t, root, troubleshooting)
	var cells []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(page, -1) {
		cells = append(cells, match[1])
	}
	refusal := regexp.MustCompile(`fail \(?(?:printf )?"((?:[^"\\]|\\.)*)"`)
	policy := regexp.MustCompile(`"gpufabric\.policy\.(?:head|ownEntries)" \(dict [^)]*"name" "([a-z-]+)"`)
	messages := refusal.FindAllStringSubmatch(read(t, root, "charts/gpufabric/templates/_checks.tpl"), -1)
	for _, match := range messages {
		if !slices.ContainsFunc(cells, func(cell string) bool { return strings.Contains(match[1], cell) }) {
			t.Errorf("the chart refuses with %q, and %s has no row with words of it", match[1], troubleshooting)
		}
	}
	policies := 0
	for _, file := range []string{"admission-policies.yaml", "webhook.yaml"} {
		content := read(t, root, "charts/gpufabric/templates/"+file)
		for _, match := range policy.FindAllStringSubmatch(content, -1) {
			policies++
			if !slices.Contains(cells, "gpufabric-"+match[1]) {
				t.Errorf("charts/gpufabric/templates/%s: the policy gpufabric-%s has no row in %s", file, match[1], troubleshooting)
			}
		}
	}
	if len(messages) < 10 || policies < 10 {
		t.Errorf("only %d messages and %d policies were found", len(messages), policies)
	}
}

// TestTroubleshootingHasAnEntryForEachRefusalOfTheScheduler takes the results of the functions that refuse a GPU.
func TestTroubleshootingHasAnEntryForEachRefusalOfTheScheduler(t *testing.T) {
	root := root(t)
	page := read(t, root, troubleshooting)
	found := 0
	for _, path := range goFiles(t, root, "drivers/scheduler") {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "refuses") {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				returned, ok := n.(*ast.ReturnStmt)
				if !ok || len(returned.Results) == 0 {
					return true
				}
				text := ""
				ast.Inspect(returned.Results[0], func(n ast.Node) bool {
					if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && text == "" {
						text, _ = strconv.Unquote(l.Value)
					}
					return text == ""
				})
				text = strings.TrimSuffix(strings.TrimSpace(text), " (annotation")
				if text == "" {
					return true
				}
				found++
				if !strings.Contains(page, "| `"+text+"`") {
					t.Errorf("%s: %s returns %q, which has no row in %s", path, f.Name.Name, text, troubleshooting)
				}
				return true
			})
		}
	}
	if found < 10 {
		t.Errorf("only %d refusals were found", found)
	}
}

// TestTroubleshootingNamesOnlyRefusalsOfSharesInTheCode checks that vgpu-plugin's code has each sentence of the page's table of refusals.
func TestTroubleshootingNamesOnlyRefusalsOfSharesInTheCode(t *testing.T) {
	root := root(t)
	_, table, ok := strings.Cut(read(t, root, troubleshooting), "## Shares for Volcano\n")
	if !ok {
		t.Fatalf("%s has no part about shares for Volcano", troubleshooting)
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var all strings.Builder
	for _, path := range slices.Concat(goFiles(t, root, "drivers/vgpu"), goFiles(t, root, "drivers/gpu/limiter"),
		goFiles(t, root, "drivers/gpu/memorylimits")) {
		all.WriteString(read(t, root, path))
	}
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(all.String(), match[1]) {
			t.Errorf("%s: nothing in drivers/vgpu, drivers/gpu/limiter and drivers/gpu/memorylimits says %q any more", troubleshooting, match[1])
		}
	}
}
