package release

import (
	"archive/zip"
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	spdx "github.com/spdx/tools-golang/json"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/provenance"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/images"
)

// tagsOf are the manifests of a layout by their tag.
func tagsOf(t *testing.T, path string) (v1.ImageIndex, map[string]v1.Descriptor) {
	t.Helper()
	index, err := layout.ImageIndexFromPath(path)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	found := map[string]v1.Descriptor{}
	for _, d := range manifest.Manifests {
		found[d.Annotations[annotationTag]] = d
	}
	return index, found
}

func TestImagesHaveIndexNumericUserLabelsAndLicences(t *testing.T) {
	r := released(t)
	for _, name := range []string{"gpufabric", "gpufabric-scheduler", "fakefabric"} {
		whole, tags := tagsOf(t, filepath.Join(r.Out, "oci", name))
		index, err := whole.ImageIndex(tags[version].Digest)
		must(t, err)
		manifest, err := index.IndexManifest()
		must(t, err)
		var architectures []string
		for _, d := range manifest.Manifests {
			architectures = append(architectures, d.Platform.Architecture)
			image, err := index.Image(d.Digest)
			must(t, err)
			config, err := image.ConfigFile()
			must(t, err)
			if config.Config.User != "65532:65532" || config.Architecture != d.Platform.Architecture {
				t.Errorf("%s: user %q, architecture %s in the index and %s in the image", name, config.Config.User, d.Platform.Architecture,
					config.Architecture)
			}
			for label, want := range map[string]string{"version": version, "revision": r.Commit.Hash, "source": Source, "licenses": "Apache-2.0"} {
				if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
					t.Errorf("%s: label %s is %q, want %q", name, label, got, want)
				}
			}
			all, err := components(image, r.Lock, d.Platform.Architecture)
			must(t, err)
			for _, want := range []string{"/usr/share/doc/" + name + "/LICENSE", "/usr/share/doc/" + name + "/THIRD-PARTY-NOTICES"} {
				if !slices.ContainsFunc(all, func(c component) bool { return c.Path == want }) {
					t.Errorf("%s for %s has no %s", name, d.Platform.Architecture, want)
				}
			}
			for _, one := range all {
				if strings.Contains(one.Path, "/etc/ssl") {
					t.Errorf("%s has %s, certificates of the machine that built it", name, one.Path)
				}
			}
		}
		if !slices.Equal(architectures, []string{"amd64", "arm64"}) {
			t.Errorf("%s has %v", name, architectures)
		}
	}
}

func TestIdentifyRefusesFilesOfTheBuildingMachine(t *testing.T) {
	elf := []byte("\x7fELF and more")
	lock := Lock{Packages: []library{{Package: "libc6", Version: "1", Architecture: "amd64",
		Files: map[string]string{"libc.so.6": hexSum(elf)}}}}
	for _, test := range []struct{ name, path, content, architecture, want string }{
		{"a locked library", "/lib/x86_64-linux-gnu/libc.so.6", string(elf), "amd64", ""},
		{"another version of it", "/lib/x86_64-linux-gnu/libc.so.6", "\x7fELF other", "amd64", "install that version"},
		{"the other architecture's", "/lib/aarch64-linux-gnu/libc.so.6", string(elf), "arm64", "no file of the machine"},
		{"a library of nobody", "/lib/x86_64-linux-gnu/libz.so.1", string(elf), "amd64", "no file of the machine"},
		{"certificates", "/etc/ssl/certs/ca-certificates.crt", "-----BEGIN", "amd64", "no file of the machine"},
		{"a program among licences", "/usr/share/doc/x/LICENSE", string(elf), "amd64", "no file of the machine"},
	} {
		_, err := identify(test.path, []byte(test.content), lock, test.architecture)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

func TestChartsHaveDigestsOfTheReleasesImages(t *testing.T) {
	r := released(t)
	for name, want := range map[string][]string{"gpufabric": {"gpufabric", "gpufabric-scheduler"}, "fake-hardware": {"fakefabric"}} {
		path := filepath.Join(r.Out, name+"-"+version+".tgz")
		loaded, err := loader.LoadFile(path)
		must(t, err)
		values, err := yaml.Marshal(loaded.Values)
		must(t, err)
		for _, image := range want {
			if !strings.Contains(string(values), r.digests[image].String()) {
				t.Errorf("chart %s has no digest of %s", name, image)
			}
		}
		if loaded.Metadata.Version != version || loaded.Metadata.AppVersion != version {
			t.Errorf("chart %s has versions %s and %s", name, loaded.Metadata.Version, loaded.Metadata.AppVersion)
		}
		signatory, err := provenance.NewFromKeyring(filepath.Join(r.Out, "openpgp.gpg"), "test")
		must(t, err)
		if _, err := signatory.Verify(path, path+".prov"); err != nil {
			t.Errorf("helm does not verify %s: %v", path, err)
		}
		whole, tags := tagsOf(t, filepath.Join(r.Out, "oci/charts", name))
		image, err := whole.Image(tags[version].Digest)
		must(t, err)
		layers, err := image.Layers()
		must(t, err)
		if sum, err := layers[0].Digest(); err != nil || sum.Hex != hexSum(get(t, path)) {
			t.Errorf("the layout of chart %s has %s, the archive is %s (%v)", name, sum, hexSum(get(t, path)), err)
		}
	}
}

func TestPinNamesAnImageWithoutDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values.yaml")
	r := &Release{digests: map[string]v1.Hash{"gpufabric": {Algorithm: "sha256", Hex: strings.Repeat("a", 64)}}}
	for _, text := range []string{
		"image:\n  repository: ghcr.io/gpufabric/gpufabric\n  tag: \"\"\n",
		"image:\n  repository: ghcr.io/gpufabric/other\n  digest: \"\"\n",
		"image: {}\n",
	} {
		put(t, path, text)
		if err := r.pin(path); err == nil || !strings.Contains(err.Error(), "give each image a line digest") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestProviderHasTheRegistrysLayout(t *testing.T) {
	r := released(t)
	prefix := filepath.Join(r.Out, "provider", providerName+"_"+version+"_")
	list := get(t, prefix+"SHA256SUMS")
	for _, name := range []string{"linux_amd64.zip", "linux_arm64.zip", "manifest.json"} {
		want := hexSum(get(t, prefix+name)) + "  " + filepath.Base(prefix) + name + "\n"
		if !strings.Contains(string(list), want) {
			t.Errorf("the list has no line %q:\n%s", want, list)
		}
	}
	archive, err := zip.OpenReader(prefix + "linux_arm64.zip")
	must(t, err)
	defer func() { _ = archive.Close() }()
	if first := archive.File[0]; first.Name != providerName+"_v"+version || first.Mode() != 0o755 {
		t.Errorf("the archive begins with %s of mode %s", first.Name, first.Mode())
	}
	ring, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(get(t, filepath.Join(r.Out, "openpgp.pub.asc"))))
	must(t, err)
	signature := bytes.NewReader(get(t, prefix+"SHA256SUMS.sig"))
	if _, err := openpgp.CheckDetachedSignature(ring, bytes.NewReader(list), signature, nil); err != nil {
		t.Error(err)
	}
}

func public(t *testing.T, r *Release) *ecdsa.PublicKey {
	t.Helper()
	block, _ := pem.Decode(get(t, filepath.Join(r.Out, "signing.pub")))
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	must(t, err)
	return key.(*ecdsa.PublicKey)
}

func verified(key *ecdsa.PublicKey, content, signature []byte) bool {
	sum := sha256.Sum256(content)
	return ecdsa.VerifyASN1(key, sum[:], signature)
}

func TestSignaturesAndAttestationsAreOfTheDigest(t *testing.T) {
	r := released(t)
	key := public(t, r)
	for _, name := range sortedKeys(r.digests) {
		whole, tags := tagsOf(t, filepath.Join(r.Out, "oci", name))
		digest := tags[version].Digest
		signed, err := whole.Image(tags[signatureTag(digest, "sig")].Digest)
		must(t, err)
		manifest, err := signed.Manifest()
		must(t, err)
		payload := blob(t, signed, 0)
		signature, err := base64.StdEncoding.DecodeString(manifest.Layers[0].Annotations[annotationSignature])
		must(t, err)
		if !verified(key, payload, signature) || !strings.Contains(string(payload), digest.String()) {
			t.Errorf("%s: the signature is not of %s: %s", name, digest, payload)
		}
		attested, err := whole.Image(tags[signatureTag(digest, "att")].Digest)
		must(t, err)
		layers, err := attested.Layers()
		must(t, err)
		var kinds []string
		for i := range layers {
			s := opened(t, key, blob(t, attested, i))
			kinds = append(kinds, s.PredicateType)
			if len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != digest.Hex {
				t.Errorf("%s: statement %d is of %v", name, i, s.Subject)
			}
		}
		if !slices.Contains(kinds, spdxPredicate) || !slices.Contains(kinds, slsaPredicate) {
			t.Errorf("%s has statements %v", name, kinds)
		}
	}
	s := opened(t, key, get(t, filepath.Join(r.Out, "provenance.intoto.jsonl")))
	named := map[string]string{}
	for _, one := range s.Subject {
		named[one.Name] = one.Digest["sha256"]
	}
	if named["oci/gpufabric"] != r.digests["gpufabric"].Hex ||
		named["krew/gpufabric.yaml"] != hexSum(get(t, filepath.Join(r.Out, "krew/gpufabric.yaml"))) {
		t.Errorf("the provenance names %v", named)
	}
}

func blob(t *testing.T, image v1.Image, i int) []byte {
	t.Helper()
	layers, err := image.Layers()
	must(t, err)
	stream, err := layers[i].Compressed()
	must(t, err)
	defer func() { _ = stream.Close() }()
	var out bytes.Buffer
	_, err = out.ReadFrom(stream)
	must(t, err)
	return out.Bytes()
}

// opened is the statement in a DSSE envelope, once its signature is verified.
func opened(t *testing.T, key *ecdsa.PublicKey, envelope []byte) statement {
	t.Helper()
	var e struct {
		PayloadType, Payload string
		Signatures           []struct{ Sig string }
	}
	must(t, json.Unmarshal(envelope, &e))
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	must(t, err)
	signature, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
	must(t, err)
	pae := "DSSEv1 28 application/vnd.in-toto+json " + jsonInt(len(payload)) + " " + string(payload)
	if !verified(key, []byte(pae), signature) {
		t.Error("the envelope's signature is wrong")
	}
	var s statement
	must(t, json.Unmarshal(payload, &s))
	return s
}

func jsonInt(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

func TestRecordsNameLicencesOfEveryArtifact(t *testing.T) {
	r := released(t)
	records, err := filepath.Glob(filepath.Join(r.Out, "sbom/*.spdx.json"))
	must(t, err)
	if want := 3*2 + 2 + 2*2 + 2; len(records) != want { // images, charts, archives, provider
		t.Errorf("%d records, want %d: %v", len(records), want, records)
	}
	for _, path := range records {
		document, err := spdx.Read(bytes.NewReader(get(t, path)))
		must(t, err)
		for _, p := range document.Packages {
			if p.PackageName == "std" && p.PackageLicenseDeclared != "BSD-3-Clause" {
				t.Errorf("%s: Go's library has licence %s", path, p.PackageLicenseDeclared)
			}
		}
		if len(document.Files) == 0 || len(document.Packages[0].PackageChecksums) != 1 {
			t.Errorf("%s names no file, or no sum of its artifact", path)
		}
	}
}

func TestRecordsNeedALicenceOfEveryModule(t *testing.T) {
	texts := Texts{ModuleCache: t.TempDir(), GoRoot: t.TempDir(), Root: t.TempDir()}
	put(t, filepath.Join(texts.ModuleCache, "example.com/!big@v1.0.0/LICENSE.md"), "x")
	put(t, filepath.Join(texts.ModuleCache, "example.com/small@v1.0.0/README.md"), "x")
	if found, err := texts.licences(module{"example.com/Big", "v1.0.0"}); err != nil || len(found) != 1 {
		t.Errorf("found %v, error %v", found, err)
	}
	for _, m := range []module{{"example.com/small", "v1.0.0"}, {"example.com/missing", "v1.0.0"}} {
		if _, err := texts.licences(m); err == nil || !strings.Contains(err.Error(), m.Path) {
			t.Errorf("%s: error %v", m.Path, err)
		}
	}
}

func TestIdentifierNamesCommonLicences(t *testing.T) {
	for want, text := range map[string]string{
		"MIT":          "MIT License\n\nPermission is hereby granted, free of charge, to any\nperson obtaining a copy",
		"BSD-3-Clause": "Redistribution and use in source and binary forms ... Neither the name of X",
		"BSD-2-Clause": "Redistribution and use in source and binary forms, with or without",
		"NOASSERTION":  "All rights reserved.",
	} {
		if got := identifier(map[string][]byte{"LICENSE": []byte(text)}); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

func TestChecksumsNameEveryFile(t *testing.T) {
	r := released(t)
	list := get(t, filepath.Join(r.Out, "SHA256SUMS"))
	if !verified(public(t, r), list, get(t, filepath.Join(r.Out, "SHA256SUMS.sig"))) {
		t.Error("the signature of SHA256SUMS is wrong")
	}
	err := filepath.WalkDir(r.Out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(r.Out, path)
		if name != "SHA256SUMS" && name != "SHA256SUMS.sig" && !strings.Contains(string(list), hexSum(get(t, path))+"  "+name+"\n") {
			t.Errorf("SHA256SUMS does not name %s", name)
		}
		return err
	})
	must(t, err)
}

func TestCompareFindsTwoReleasesOfOneCommitEqual(t *testing.T) {
	a := released(t)
	b := assembled(t, func(root string) { // other modes, as another umask leaves them
		must(t, os.Chmod(filepath.Join(root, "bin/gpufabric"), 0o700))
		must(t, os.Chmod(filepath.Join(root, "charts/gpufabric/values.yaml"), 0o600))
		must(t, os.Chmod(filepath.Join(root, "LICENSE"), 0o600))
	})
	differences, err := Compare(a.Out, b.Out)
	must(t, err)
	if len(differences) > 0 {
		t.Errorf("they differ: %s", strings.Join(differences, "\n"))
	}
}

func TestCompareNamesTheFileThatDiffers(t *testing.T) {
	a := released(t)
	b := assembled(t, func(root string) {
		put(t, filepath.Join(root, "bin/arm64/gpufabric-scheduler"), string(compiled(t, "arm64"))+"x")
		put(t, filepath.Join(root, "charts/fake-hardware/README.md"), "other")
	})
	differences, err := Compare(a.Out, b.Out)
	must(t, err)
	text := strings.Join(differences, "\n")
	for _, want := range []string{"oci/gpufabric-scheduler!" + version + "!arm64!layer", "usr/bin/gpufabric-scheduler: ",
		"fake-hardware-" + version + ".tgz!fake-hardware/README.md: "} {
		if !strings.Contains(text, want) {
			t.Errorf("no difference has %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "oci/gpufabric!"+version+"!amd64") {
		t.Errorf("an image is named that is the same:\n%s", text)
	}
}

func TestCompareRefusesADirectoryWithoutARelease(t *testing.T) {
	r, empty := released(t), t.TempDir()
	for _, pair := range [][2]string{{empty, empty}, {r.Out, empty}, {empty, r.Out}, {filepath.Dir(r.Out), filepath.Dir(r.Out)},
		{filepath.Join(r.Out, "SHA256SUMS"), r.Out}} {
		if _, err := Compare(pair[0], pair[1]); err == nil || !strings.Contains(err.Error(), "such as dist/0.1.0") {
			t.Errorf("%s and %s: error %v", pair[0], pair[1], err)
		}
	}
}

func TestArchivesHaveTheirModes(t *testing.T) {
	r := released(t)
	parts := map[string]string{}
	name := r.archiveName("gpufabric", "amd64")
	must(t, members(parts, "a", get(t, filepath.Join(r.Out, name))))
	if !strings.HasPrefix(parts["a!gpufabric"], "-rwxr-xr-x 0:0 ") || !strings.HasPrefix(parts["a!LICENSE"], "-rw-r--r-- 0:0 ") {
		t.Errorf("the archive has %v", parts)
	}
	if _, err := read(images.File{From: filepath.Join(r.Out, "nowhere")}); err == nil {
		t.Error("a file that is missing is read")
	}
}
