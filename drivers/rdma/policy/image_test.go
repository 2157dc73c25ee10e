package policy

import (
	"strings"
	"testing"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

func TestImagesRunPrivilegedOnlyWhenListed(t *testing.T) {
	for _, test := range []struct {
		entry, image string
		want         bool
	}{
		{"mellanox/", "mellanox/ofed-driver:1", true},
		{"mellanox/", "mellanox.evil/ofed-driver:1", false},
		{"mellanox/", "evil.example/mellanox/ofed-driver:1", false},
		{"mellanox/ofed-driver", "mellanox/ofed-driver:1", true},
		{"mellanox/ofed-driver", "mellanox/ofed-driver@sha256:0", true},
		{"mellanox/ofed-driver", "mellanox/ofed-driver", true},
		{"mellanox/ofed-driver", "mellanox/ofed-driver-evil:1", false},
		{"mellanox/ofed-driver:1", "mellanox/ofed-driver:1", true},
		{"mellanox/ofed-driver:1", "mellanox/ofed-driver:12", false},
		{"registry:5000/ofed", "registry:5000/ofed:1", true},
	} {
		if got := allows(test.entry, test.image); got != test.want {
			t.Errorf("entry %s, image %s: got %v", test.entry, test.image, got)
		}
	}
	err := FromEnvironment(func(string) string { return "" }).permit("mellanox/ofed-driver:1")
	if err == nil || !strings.Contains(err.Error(), "rdma.nicClusterPolicy.images, which is empty") {
		t.Errorf("without a list: %v", err)
	}
}

// The names without a template are those under which the public images are, or were.
func TestImageHasThePublicName(t *testing.T) {
	const hash = "sha256:9a831bfdf85f313b1f5749b7c9b2673bb8fff18b4ff768c9242dabaa4468e449"
	for _, test := range []struct{ template, repository, image, version, want string }{
		{"", "nvcr.io/nvidia/mellanox", "doca-driver", "doca3.5.0-26.07-0.7.0.0-0",
			"nvcr.io/nvidia/mellanox/doca-driver:doca3.5.0-26.07-0.7.0.0-0-ubuntu24.04-amd64"},
		{"", "nvcr.io/nvidia/mellanox", "doca-driver", "25.01-0.6.0.0-0",
			"nvcr.io/nvidia/mellanox/doca-driver:25.01-0.6.0.0-0-ubuntu24.04-amd64"},
		{"", "nvcr.io/nvidia/mellanox", "mofed", "23.10-0.2.2.0", "nvcr.io/nvidia/mellanox/mofed:23.10-0.2.2.0-ubuntu24.04-amd64"},
		{"", "nvcr.io/nvidia/mellanox", "mofed", "5.7-0.1.2.0", "nvcr.io/nvidia/mellanox/mofed:5.7-0.1.2.0-ubuntu24.04-amd64"},
		{"", "nvcr.io/nvidia/mellanox", "mofed", "5.6-1.0.3.3", "nvcr.io/nvidia/mellanox/mofed-5.6-1.0.3.3:ubuntu24.04-amd64"},
		{"", "mellanox", "ofed-driver", "5.0-2.1.8.0", "mellanox/ofed-driver-5.0-2.1.8.0:ubuntu24.04-amd64"},
		{"", "mellanox", "ofed-driver", "4.9-0.1.7.0", "mellanox/ofed-driver-4.9-0.1.7.0:ubuntu24.04-amd64"},
		{"", "nvcr.io/nvidia/mellanox", "doca-driver", hash, "nvcr.io/nvidia/mellanox/doca-driver@" + hash},
		{"registry.example/{image}:{version}-{kernel}", "a", "doca-driver", hash, "a/doca-driver@" + hash},
		{"", "b/", "doca-driver", "25.01-0.6.0.0-0", "b/doca-driver:25.01-0.6.0.0-0-ubuntu24.04-amd64"},
		{"", "b//", "doca-driver", hash, "b/doca-driver@" + hash},
		{"registry.example/{image}:{kernel}", "a", "b", "1", "registry.example/b:6.8.0-31-generic"},
		{"stand-in:v1", "a", "b", hash, "stand-in:v1"},
	} {
		spec := mellanox.ImageSpec{Repository: test.repository, Image: test.image, Version: test.version}
		got := Image(ofedTemplate(test.template, test.version), spec, "ubuntu", "24.04", "6.8.0-31-generic", "amd64")
		if got != test.want {
			t.Errorf("%q, %s: got %s, want %s", test.template, test.version, got, test.want)
		}
	}
	spec := mellanox.ImageSpec{Repository: "mellanox", Image: "nv-peer-mem-driver", Version: "1.0-9"}
	if got := Image(peerImage, spec, "ubuntu", "18.04", "4.15", "amd64"); got != "mellanox/nv-peer-mem-driver-1.0-9:amd64-ubuntu18.04" {
		t.Errorf("the peer driver: got %s", got)
	}
}
