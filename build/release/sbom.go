package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

var spdxID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func elementID(name string) common.ElementID {
	return common.ElementID(spdxID.ReplaceAllString(name, "-"))
}

// sbom returns the record of an artifact in SPDX 2.3: its files, and the modules and packages that they are made of. digest is the
// artifact's SHA-256 in hexadecimal digits; purl may be empty.
func (r *Release) sbom(name, digest, purl string, all []component) ([]byte, error) {
	document := &v2_3.Document{
		SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: fmt.Sprintf("%s/releases/download/v%s/%s.spdx.json#%s", Source, r.Version, name, digest),
		CreationInfo: &v2_3.CreationInfo{
			Created:  r.Commit.Time.Format("2006-01-02T15:04:05Z"),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "gpufabric"}, {CreatorType: "Tool", Creator: "gpufabric-release"}},
		},
	}
	artifact := elementID("Artifact-" + name)
	document.Packages = append(document.Packages, &v2_3.Package{
		PackageName: name, PackageSPDXIdentifier: artifact, PackageVersion: r.Version, PackageDownloadLocation: Source + "/releases",
		PackageChecksums:       []common.Checksum{{Algorithm: common.SHA256, Value: digest}},
		PackageLicenseDeclared: "Apache-2.0", PackageLicenseConcluded: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		PackageExternalReferences: reference(purl),
	})
	relate := func(a common.ElementID, how string, b common.ElementID) {
		document.Relationships = append(document.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", string(a)), Relationship: how, RefB: common.MakeDocElementID("", string(b))})
	}
	relate("DOCUMENT", common.TypeRelationshipDescribe, artifact)
	for i, one := range all {
		file := elementID(fmt.Sprintf("File-%d-%s", i, one.Path))
		document.Files = append(document.Files, &v2_3.File{
			FileName: "./" + strings.TrimPrefix(one.Path, "/"), FileSPDXIdentifier: file,
			Checksums:        []common.Checksum{{Algorithm: common.SHA256, Value: one.SHA256}},
			LicenseConcluded: "NOASSERTION", FileCopyrightText: "NOASSERTION",
		})
		relate(artifact, common.TypeRelationshipContains, file)
		for _, m := range one.Modules {
			relate(file, common.TypeRelationshipDependsOn, moduleID(m))
		}
		if one.Library != nil {
			relate(file, common.TypeRelationshipDependsOn, libraryID(one.Library))
		}
	}
	for _, m := range programs(all) {
		texts, err := r.Texts.licences(m)
		if err != nil {
			return nil, err
		}
		version, location := m.Version, "NOASSERTION"
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		switch {
		case m.Path == "std":
			purl = "pkg:golang/stdlib@" + strings.TrimPrefix(m.Version, "go")
		case own(m):
			version, purl = r.Version, "pkg:golang/"+m.Path+"@v"+r.Version
		default:
			location = "https://" + m.Path
		}
		document.Packages = append(document.Packages, &v2_3.Package{
			PackageName: m.Path, PackageSPDXIdentifier: moduleID(m), PackageVersion: version, PackageDownloadLocation: location,
			PackageLicenseDeclared: identifier(texts), PackageLicenseConcluded: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
			PackageExternalReferences: reference(purl),
		})
	}
	for _, l := range libraries(all) {
		document.Packages = append(document.Packages, &v2_3.Package{
			PackageName: "libc6", PackageSPDXIdentifier: libraryID(l), PackageVersion: l.Upstream, PackageDownloadLocation: "NOASSERTION",
			PackageSourceInfo:      fmt.Sprintf("Debian's package %s %s, of source %s %s", l.Package, l.Version, l.Source, l.Upstream),
			PackageLicenseDeclared: "LGPL-2.1-or-later", PackageLicenseConcluded: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
			PackageExternalReferences: reference(fmt.Sprintf("pkg:deb/debian/libc6@%s?arch=%s&distro=debian-12", l.Upstream, l.Architecture)),
		})
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	err := encoder.Encode(document)
	return out.Bytes(), err
}

func moduleID(m module) common.ElementID { return elementID("Module-" + m.Path + "-" + m.Version) }

func libraryID(l *library) common.ElementID {
	return elementID("Library-" + l.Package + "-" + l.Version)
}

func reference(purl string) []*v2_3.PackageExternalReference {
	if purl == "" {
		return nil
	}
	return []*v2_3.PackageExternalReference{{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: purl}}
}
