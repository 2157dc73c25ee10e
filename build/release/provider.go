package release

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpufabric.io/build/images"
)

// Platform is what the provider is built for.
type Platform struct{ OS, Architecture string }

func (p Platform) String() string { return p.OS + "_" + p.Architecture }

// ProviderPlatforms are the platforms that the provider is released for. It needs no C compiler, so every machine builds all of them.
func ProviderPlatforms() []Platform {
	return []Platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}}
}

// providerName is the provider's name in the Terraform registry's file names.
const providerName = "terraform-provider-gpufabric"

// built is where the provider for a platform is built.
func (r *Release) built(p Platform) string {
	return filepath.Join(r.Root, "bin/provider", p.String(), providerName)
}

// provider packs the provider as the Terraform registry takes it from a release on GitHub
// (https://developer.hashicorp.com/terraform/registry/providers/publishing): an archive per platform, a manifest, and a signed list of
// sums.
func (r *Release) provider() error {
	prefix := providerName + "_" + r.Version + "_"
	sums := map[string]string{}
	for _, platform := range r.Platforms {
		program := images.File{Path: providerName + "_v" + r.Version, From: r.built(platform)}
		if platform.OS == "windows" {
			program.Path += ".exe"
		}
		all, err := fileComponents([]images.File{program}, r.Lock, platform.Architecture)
		if err != nil {
			return err
		}
		documents, err := r.documents("", all)
		if err != nil {
			return err
		}
		packed, err := zipped(append([]images.File{program}, documents...), r.Commit.Time)
		if err != nil {
			return err
		}
		name := prefix + platform.String() + ".zip"
		sums[name] = hexSum(packed)
		if _, err := r.record(name, sums[name], "", all); err != nil {
			return err
		}
		if err := r.write("provider/"+name, packed); err != nil {
			return err
		}
	}
	manifest, err := os.ReadFile(filepath.Join(r.Root, "provider/terraform-registry-manifest.json"))
	if err != nil {
		return err
	}
	sums[prefix+"manifest.json"] = hexSum(manifest)
	if err := r.write("provider/"+prefix+"manifest.json", manifest); err != nil {
		return err
	}
	var list strings.Builder
	for _, name := range sortedKeys(sums) {
		fmt.Fprintf(&list, "%s  %s\n", sums[name], name)
	}
	if err := r.write("provider/"+prefix+"SHA256SUMS", []byte(list.String())); err != nil || r.Keys == nil {
		return err
	}
	signature, err := r.Keys.Detached([]byte(list.String()), r.Commit.Time)
	if err != nil {
		return err
	}
	return r.write("provider/"+prefix+"SHA256SUMS.sig", signature)
}
