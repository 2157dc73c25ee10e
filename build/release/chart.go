package release

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/images"
)

// Media types of Helm's charts in a registry (https://helm.sh/docs/topics/registries).
const (
	chartConfig     = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartContent    = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	chartProvenance = types.MediaType("application/vnd.cncf.helm.chart.provenance.v1.prov")
)

// Registry is where the charts' values expect the images.
const Registry = "ghcr.io/gpufabric"

// annotationImage is in a released chart the digest of the image that it was released with. Helm's --reuse-values keeps the digest of the
// chart before, which is in its values.
const annotationImage = "gpufabric.io/image"

var imageValue = regexp.MustCompile(`(?m)^( *)repository: ` + regexp.QuoteMeta(Registry) +
	`/([a-z-]+)\n((?: +[a-z]+:.*\n)*?)( *)digest: ""`)

// charts packs each chart, with the digests of the images that it runs, as an archive and as an OCI layout.
func (r *Release) charts() error {
	directories, err := filepath.Glob(filepath.Join(r.Root, "charts/*/Chart.yaml"))
	if err != nil {
		return err
	}
	for _, path := range directories {
		if err := r.chart(filepath.Dir(path)); err != nil {
			return fmt.Errorf("chart %s: %w", filepath.Base(filepath.Dir(path)), err)
		}
	}
	return nil
}

func (r *Release) chart(dir string) error {
	if err := r.pin(filepath.Join(dir, "values.yaml")); err != nil {
		return err
	}
	if err := annotateImage(dir); err != nil {
		return err
	}
	loaded, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	if loaded.Metadata.Version != r.Version || loaded.Metadata.AppVersion != r.Version {
		return fmt.Errorf("it has version %s and appVersion %s, want %s", loaded.Metadata.Version, loaded.Metadata.AppVersion, r.Version)
	}
	var files []images.File
	for _, file := range loaded.Raw {
		files = append(files, images.File{Path: loaded.Name() + "/" + file.Name, Content: file.Data, Mode: 0o644})
	}
	licence, err := os.ReadFile(filepath.Join(r.Root, "LICENSE"))
	if err != nil {
		return err
	}
	files = append(files, images.File{Path: loaded.Name() + "/LICENSE", Content: licence, Mode: 0o644})
	sort.Slice(files, func(i, j int) bool { return files[i].Path < files[j].Path })
	packed, err := tarball(files, r.Commit.Time)
	if err != nil {
		return err
	}
	all, err := fileComponents(files, r.Lock, "")
	if err != nil {
		return err
	}
	archive := fmt.Sprintf("%s-%s.tgz", loaded.Name(), r.Version)
	record, err := r.record(archive, hexSum(packed), "", all)
	if err != nil {
		return err
	}
	if err := r.write(archive, packed); err != nil {
		return err
	}
	provenance, err := r.chartProvenance(loaded.Metadata, archive, packed)
	if err != nil {
		return err
	}
	return r.chartLayout(loaded.Metadata, packed, provenance, record)
}

// pin sets the digests of the release's images in a chart's values, whose comments stay.
func (r *Release) pin(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var missing []string
	pinned := 0
	text = imageValue.ReplaceAllFunc(text, func(match []byte) []byte {
		parts := imageValue.FindSubmatch(match)
		digest, ok := r.digests[string(parts[2])]
		if !ok {
			missing = append(missing, string(parts[2]))
			return match
		}
		pinned++
		return []byte(strings.TrimSuffix(string(match), `""`) + `"` + digest.String() + `"`)
	})
	if all := strings.Count(string(text), "repository: "+Registry+"/"); len(missing) > 0 || pinned != all || all == 0 {
		return fmt.Errorf("%s names %d images of %s and %d got a digest (of no image of this release: %v): give each image a line digest: \"\"",
			path, all, Registry, pinned, missing)
	}
	return os.WriteFile(path, text, 0o644)
}

// annotateImage writes the pinned digest of a chart's own image among its annotations.
func annotateImage(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		return err
	}
	var values struct{ Image struct{ Digest string } }
	if err := yaml.Unmarshal(text, &values); err != nil {
		return err
	}
	path := filepath.Join(dir, "Chart.yaml")
	if text, err = os.ReadFile(path); err != nil {
		return err
	}
	const list = "\nannotations:\n"
	if strings.Count(string(text), list) != 1 {
		return fmt.Errorf("%s has no block annotations: give it one", path)
	}
	pinned := strings.Replace(string(text), list, fmt.Sprintf("%s  %s: %s\n", list, annotationImage, values.Image.Digest), 1)
	return os.WriteFile(path, []byte(pinned), 0o644)
}

// chartProvenance writes what `helm verify` reads beside an archive: the chart's metadata and the archive's sum, signed. Without keys
// there is none.
func (r *Release) chartProvenance(metadata *chart.Metadata, archive string, packed []byte) ([]byte, error) {
	if r.Keys == nil {
		return nil, nil
	}
	described, err := yaml.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	sums, err := yaml.Marshal(map[string]any{"files": map[string]string{archive: "sha256:" + hexSum(packed)}})
	if err != nil {
		return nil, err
	}
	signed, err := r.Keys.Clear(fmt.Appendf(nil, "%s\n...\n%s", described, sums), r.Commit.Time)
	if err != nil {
		return nil, err
	}
	return signed, r.write(archive+".prov", signed)
}

// chartLayout writes the chart as `helm push` would, under the version's tag.
func (r *Release) chartLayout(metadata *chart.Metadata, packed, provenance, record []byte) error {
	config, err := json.Marshal(metadata)
	if err != nil {
		return err
	}
	layers := []mutate.Addendum{{Layer: static.NewLayer(packed, chartContent)}}
	if provenance != nil {
		layers = append(layers, mutate.Addendum{Layer: static.NewLayer(provenance, chartProvenance)})
	}
	labels := r.labels("chart " + metadata.Name)
	labels["org.opencontainers.image.title"], labels["org.opencontainers.image.description"] = metadata.Name, metadata.Description
	artifact, err := newArtifact(config, chartConfig, labels, layers)
	if err != nil {
		return err
	}
	digest, err := artifact.Digest()
	if err != nil {
		return err
	}
	name := "charts/" + metadata.Name
	r.digests[name] = digest
	path, err := layout.Write(filepath.Join(r.Out, "oci", name), empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendImage(artifact, tagged(r.Version)); err != nil {
		return err
	}
	return r.seal(path, Registry+"/"+name, digest, [][]byte{record})
}
