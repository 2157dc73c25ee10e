package policy

import (
	"regexp"
	"strconv"
	"strings"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// Name formats of the public driver images. Source: the network operator, pkg/state/state_ofed.go (mofedImageFormat, and
// mofedImageOldFormat up to commit a6eb9f64) and manifests/stage-nv-peer-mem-driver of its first releases.
const (
	// DefaultImage: nvcr.io/nvidia/mellanox/doca-driver:25.01-0.6.0.0-0-ubuntu24.04-amd64.
	DefaultImage = "{repository}/{image}:{version}-{os}{release}-{arch}"
	// oldImage, of MOFED before 5.7: mellanox/ofed-driver-5.0-2.1.8.0:ubuntu18.04-amd64.
	oldImage = "{repository}/{image}-{version}:{os}{release}-{arch}"
	// peerImage: mellanox/nv-peer-mem-driver-1.0-9:amd64-ubuntu18.04.
	peerImage = "{repository}/{image}-{version}:{arch}-{os}{release}"
	// digestImage is for a version that is a digest.
	digestImage = "{repository}/{image}@{version}"
)

// digest precedes the hexadecimal digits of a version that is a digest.
const digest = "sha256:"

// mofed matches a version of MOFED, which is 5.0-2.1.8.0; DOCA's begin with doca, or with the year, as in 25.01-0.6.0.0-0.
var mofed = regexp.MustCompile(`^(\d+)\.(\d+)-`)

// before57 reports whether a version is of MOFED before 5.7, the first release whose version is in the image's tag.
func before57(version string) bool {
	parts := mofed.FindStringSubmatch(version)
	if parts == nil {
		return false
	}
	major, errMajor := strconv.Atoi(parts[1])
	minor, errMinor := strconv.Atoi(parts[2])
	return errMajor == nil && errMinor == nil && (major < 5 || major == 5 && minor < 7)
}

// ofedTemplate returns the name format of the NIC driver's image; an empty template selects the public one.
func ofedTemplate(template, version string) string {
	switch {
	case template != "":
		return template
	case before57(version):
		return oldImage
	}
	return DefaultImage
}

// Image fills the placeholders {repository}, {image}, {version}, {os}, {release}, {kernel} and {arch} of an image's name. A version
// that is a digest cannot be part of a name or tag: then the image is repository/image@digest, if the template uses the version. A
// repository may end in a slash.
func Image(template string, spec mellanox.ImageSpec, os, release, kernel, arch string) string {
	if strings.HasPrefix(spec.Version, digest) && strings.Contains(template, "{version}") {
		template = digestImage
	}
	return strings.NewReplacer("{repository}", strings.TrimRight(spec.Repository, "/"), "{image}", spec.Image, "{version}", spec.Version,
		"{os}", os, "{release}", release, "{kernel}", kernel, "{arch}", arch).Replace(template)
}
