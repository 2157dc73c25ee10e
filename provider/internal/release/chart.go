// Package release installs, upgrades, watches and removes one Helm release, with Helm as a library.
package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Chart is a chart read from a directory, an archive, a registry or a web server.
type Chart struct {
	chart *chart.Chart

	Path       string
	Version    string
	AppVersion string
	// Digest identifies the content: two charts with equal digests render alike. 64 hexadecimal digits.
	Digest string
}

// Load reads a chart: a directory with a Chart.yaml, an archive made by `helm package`, or an address that download takes. Errors
// name the file that exists instead.
func Load(ctx context.Context, from string) (*Chart, error) {
	var loaded *chart.Chart
	var err error
	if remote(from) {
		var archive []byte
		if archive, err = download(ctx, from); err != nil {
			return nil, err
		}
		loaded, err = loader.LoadArchive(bytes.NewReader(archive))
	} else {
		if err := checkPath(from); err != nil {
			return nil, err
		}
		loaded, err = loader.Load(from)
	}
	if err != nil {
		return nil, fmt.Errorf("read chart %q: %w", from, err)
	}
	if loaded.Metadata.Type == "library" {
		return nil, fmt.Errorf("the chart %q is a library chart and cannot be installed", from)
	}
	return &Chart{
		chart:      loaded,
		Path:       from,
		Version:    loaded.Metadata.Version,
		AppVersion: loaded.Metadata.AppVersion,
		Digest:     digest(loaded),
	}, nil
}

// checkPath reports the mistake in a path before Helm does.
func checkPath(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		cwd, _ := os.Getwd()
		return fmt.Errorf(
			"chart %q not found (searched from %s): give a directory with a Chart.yaml, a .tgz archive made by `helm package`, or an address "+
				"(oci://..., https://...); paths relative to the module are written \"${path.module}/...\"",
			path,
			cwd,
		)
	case err != nil:
		return fmt.Errorf("read chart %q: %w", path, err)
	case info.IsDir():
		if _, err := os.Stat(filepath.Join(path, chartutil.ChartfileName)); err != nil {
			return fmt.Errorf("the directory %q is not a chart: it has no %s", path, chartutil.ChartfileName)
		}
	}
	return nil
}

// CheckValues checks values against the chart's values.schema.json, and against each other, as Helm does at install time. The error
// lists every violation of the schema, or the first contradiction among the values.
func (c *Chart) CheckValues(values map[string]any) error {
	merged, err := chartutil.CoalesceValues(c.chart, deepCopy(values))
	if err != nil {
		return fmt.Errorf("merge the values with the chart's defaults: %w", err)
	}
	if err := chartutil.ValidateAgainstSchema(c.chart, merged); err != nil {
		return err
	}
	return c.checkTogether(merged)
}

// Values are values over the chart's own, as its templates see them, in YAML.
func (c *Chart) Values(values map[string]any) ([]byte, error) {
	merged, err := chartutil.CoalesceValues(c.chart, deepCopy(values))
	if err != nil {
		return nil, fmt.Errorf("merge the values with the chart's defaults: %w", err)
	}
	text, err := merged.YAML()
	if err != nil {
		return nil, fmt.Errorf("write the merged values: %w", err)
	}
	return []byte(text), nil
}

// checkTogether runs the chart's own check of its values, the named template NAME.check.values, where it has one. That does not
// need a cluster; its other checks do.
func (c *Chart) checkTogether(values chartutil.Values) error {
	check := c.chart.Name() + ".check.values"
	partials := slices.DeleteFunc(
		slices.Clone(c.chart.Templates),
		func(f *chart.File) bool { return !strings.HasPrefix(filepath.Base(f.Name), "_") },
	)
	if !slices.ContainsFunc(partials, func(f *chart.File) bool { return bytes.Contains(f.Data, fmt.Appendf(nil, "define %q", check)) }) {
		return nil
	}
	alone := &chart.Chart{
		Metadata:  c.chart.Metadata,
		Templates: append(partials, &chart.File{Name: "templates/check.yaml", Data: fmt.Appendf(nil, "{{ include %q . }}", check)}),
	}
	_, err := engine.Render(alone, chartutil.Values{"Values": values})
	if err == nil {
		return nil
	}
	if _, sentence, found := strings.Cut(err.Error(), "): "); found { // after the template's place
		return errors.New(sentence)
	}
	return err
}

// digest covers the parts of a chart that Helm stores in a release, so that the digest of a release's chart can be compared with
// one on disk. Helm stores no dependencies; this project's chart has none.
func digest(c *chart.Chart) string {
	h := sha256.New()
	hashFiles(h, "templates", c.Templates)
	hashFiles(h, "files", c.Files)
	hashPart(h, "schema", c.Schema)
	hashJSON(h, "metadata", c.Metadata)
	hashJSON(h, "values", c.Values)
	return hex.EncodeToString(h.Sum(nil))
}

func hashFiles(h hash.Hash, kind string, files []*chart.File) {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b *chart.File) int { return strings.Compare(a.Name, b.Name) })
	for _, f := range sorted {
		hashPart(h, kind+"/"+f.Name, f.Data)
	}
}

func hashJSON(h hash.Hash, name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		text = []byte(err.Error()) // cannot happen: the parts came from YAML
	}
	hashPart(h, name, text)
}

// hashPart includes each part's name and length, so that moving bytes from one file to the next changes the digest.
func hashPart(h hash.Hash, name string, data []byte) {
	fmt.Fprintf(h, "%s %d\n", name, len(data))
	h.Write(data)
}
