package toolchain

import (
	"fmt"
	"sort"
	"strings"
)

// The versions that everything under tests/ is made for. The modules directory pins the same ones; a test compares the two.
const (
	Kubernetes    = "v1.36.3"
	Etcd          = "v3.6.8"
	Containerd    = "v2.3.4"
	Containerd1   = "v1.7.35" // the last minor version before 2.0: `make test-runtimes`
	CoreDNS       = "v1.14.3"
	CRITools      = "v1.36.0"
	Kind          = "v0.33.0"
	Helm          = "v3.21.4"
	Helm4         = "v4.3.1"
	Terraform     = "v1.16.0"
	OpenTofu      = "v1.12.6"
	GolangciLint  = "v2.6.0"
	Gotestsum     = "v1.13.0"
	ControllerGen = "v0.21.0"
	Govulncheck   = "v1.1.4"
	MPIOperator   = "v0.8.0"
	Multus        = "v4.2.2"
	Whereabouts   = "v0.8.0" // the newest in the checksum database
	Kueue         = "v0.19.1"
	JobSet        = "v0.11.0"
	LWS           = "v0.8.0"
	CertManager   = "v1.21.2"
	Cosign        = "v3.1.3"
)

// OtherKubernetes are the other versions that gpufabric serves, by the minor version: `make test-versions` runs their control planes. Each
// has its module, kubernetes-MINOR.
var OtherKubernetes = map[string]string{"1.34": "v1.34.4", "1.35": "v1.35.4", "1.37": "v1.37.2"}

// OfKubernetes is the name under which the catalogue has a program of the control plane of another version of Kubernetes, such as 1.35.
func OfKubernetes(program, minor string) string { return program + "-" + minor }

// NodeImage is kind's own node image for that Kubernetes.
const NodeImage = "kindest/node:" + Kubernetes

// Peers are others' programs that tests run, unmodified, with our fakes, at exactly these versions.
const (
	NVIDIADRADriver      = "v0.5.0"
	NVIDIADevicePlugin   = "v0.18.0"
	NVIDIAToolkit        = "v1.20.1"
	NodeFeatureDiscovery = "v0.18.3"
)

// Tool is one command: how to recognize a suitable one on the PATH, and how to build it from its module.
type Tool struct {
	Name    string
	Version string // the version to build, such as v1.36.3

	onPath     []string // command names to look for, best first
	fits       span     // suitable versions on the PATH
	askVersion []string // arguments that make it print its version
	static     bool     // goes into an image without libraries, so one linked against libc is not suitable

	release release // the file that its project publishes; none: it is always built
	minutes int     // minutes of a build on two idle cores with an empty cache; 0: less than one

	named bool // made only where it is named: for tools that one target alone runs

	module   string // directory under modules/
	main     string // the main package
	project  string // a package of the project where the main package is one of ours
	binary   string // base name of the built program
	tags     string
	settings []string // -X settings of the linker
}

func catalogue() map[string]Tool {
	tools := map[string]Tool{}
	add := func(t Tool) {
		if t.onPath == nil {
			t.onPath = []string{t.Name}
		}
		if t.binary == "" {
			t.binary = t.Name
		}
		tools[t.Name] = t
	}

	stamps := kubernetesStamps(Kubernetes)
	exactly := span{version{1, 36, 3}, version{1, 36, 4}}
	for name, minutes := range map[string]int{"kube-apiserver": 6, "kube-controller-manager": 6, "kube-scheduler": 4, "kube-proxy": 3,
		"kubelet": 5} {
		add(Tool{Name: name, Version: Kubernetes, fits: exactly, askVersion: []string{"--version"}, static: true,
			release: kubernetesRelease(name), minutes: minutes,
			module: "kubernetes", main: "k8s.io/kubernetes/cmd/" + name, settings: stamps})
	}
	add(Tool{Name: "kubeadm", Version: Kubernetes, fits: exactly, askVersion: []string{"version", "-o", "short"}, static: true,
		release: kubernetesRelease("kubeadm"), minutes: 4,
		module: "kubernetes", main: "k8s.io/kubernetes/cmd/kubeadm", settings: stamps})
	add(
		Tool{
			Name:       "kubectl",
			Version:    Kubernetes,
			fits:       span{version{1, 36, 0}, version{1, 37, 0}},
			askVersion: []string{"version", "--client"},
			static:     true,
			release:    kubernetesRelease("kubectl"),
			minutes:    2,
			module:     "kubernetes",
			main:       "k8s.io/kubernetes/cmd/kubectl",
			settings:   stamps,
		},
	)

	add(Tool{Name: "etcd", Version: Etcd, fits: span{version{3, 6, 8}, version{3, 7, 0}}, askVersion: []string{"--version"}, static: true,
		release: githubRelease(
			"etcd-io/etcd",
			"etcd-{version}-linux-{arch}.tar.gz",
			"SHA256SUMS",
			"etcd-{version}-linux-{arch}/etcd",
		), minutes: 1,
		module: "etcd", main: "go.etcd.io/etcd/server/v3"})
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2"} {
		add(Tool{Name: name, Version: Containerd, fits: span{version{2, 3, 4}, version{2, 4, 0}}, askVersion: []string{"--version"}, static: true,
			module: "containerd", main: "github.com/containerd/containerd/v2/cmd/" + name, tags: "no_btrfs,no_zfs,no_devmapper,no_aufs",
			settings: []string{"github.com/containerd/containerd/v2/version.Version=" + Containerd}})
	}
	add(
		Tool{Name: "crictl", Version: CRITools, fits: span{version{1, 36, 0}, version{1, 37, 0}}, askVersion: []string{"--version"}, static: true,
			release: githubRelease(
				"kubernetes-sigs/cri-tools",
				"crictl-{version}-linux-{arch}.tar.gz",
				"crictl-{version}-linux-{arch}.tar.gz.sha256",
				"crictl",
			), minutes: 2,
			module: "crictl", main: "sigs.k8s.io/cri-tools/cmd/crictl", settings: []string{"sigs.k8s.io/cri-tools/pkg/version.Version=" + CRITools}},
	)
	add(
		Tool{Name: "coredns", Version: CoreDNS, fits: span{version{1, 14, 3}, version{1, 15, 0}}, askVersion: []string{"-version"}, static: true,
			minutes: 3,
			module:  "coredns", main: "github.com/coredns/coredns"},
	)

	add(Tool{Name: "kind", Version: Kind, fits: span{version{0, 33, 0}, version{1, 0, 0}}, askVersion: []string{"version"},
		release: githubRelease("kubernetes-sigs/kind", "kind-linux-{arch}", "kind-linux-{arch}.sha256sum", ""),
		module:  "kind", main: "sigs.k8s.io/kind"})
	add(Tool{Name: "helm", Version: Helm, fits: span{version{3, 21, 0}, version{4, 0, 0}}, askVersion: []string{"version", "--short"},
		release: release{
			"https://get.helm.sh",
			"helm-{version}-linux-{arch}.tar.gz",
			"helm-{version}-linux-{arch}.tar.gz.sha256sum",
			"linux-{arch}/helm",
		}, minutes: 3,
		module: "helm", main: "helm.sh/helm/v3/cmd/helm", settings: []string{"helm.sh/helm/v3/internal/version.version=" + Helm}})
	// `make test-helm4` runs it.
	add(Tool{Name: "helm4", Version: Helm4, onPath: []string{"helm4", "helm"}, fits: span{version{4, 0, 0}, version{5, 0, 0}},
		askVersion: []string{"version", "--short"}, named: true, minutes: 6, module: "helm4", main: "helm.sh/helm/v4/cmd/helm",
		settings: []string{"helm.sh/helm/v4/internal/version.version=" + Helm4}})
	// `make test-release` verifies a release with it.
	add(Tool{Name: "cosign", Version: Cosign, fits: span{version{3, 1, 3}, version{4, 0, 0}}, askVersion: []string{"version"}, named: true,
		minutes: 8, module: "cosign", main: "github.com/sigstore/cosign/v3/cmd/cosign",
		settings: []string{"sigs.k8s.io/release-utils/version.gitVersion=" + Cosign}})
	// Actions and `terraform query` need Terraform 1.14. Its licence is the Business Source Licence: it is built to test with, and goes into
	// no product.
	add(Tool{Name: "terraform", Version: Terraform, fits: span{version{1, 14, 0}, version{2, 0, 0}}, askVersion: []string{"version"},
		release: release{
			"https://releases.hashicorp.com/terraform/{number}",
			"terraform_{number}_linux_{arch}.zip",
			"terraform_{number}_SHA256SUMS",
			"terraform",
		}, minutes: 3,
		module: "terraform", main: "github.com/hashicorp/terraform", settings: []string{"github.com/hashicorp/terraform/version.dev=no"}})
	add(Tool{Name: "tofu", Version: OpenTofu, fits: span{version{1, 8, 0}, version{2, 0, 0}}, askVersion: []string{"version"},
		release: githubRelease("opentofu/opentofu", "tofu_{number}_linux_{arch}.zip", "tofu_{number}_SHA256SUMS", "tofu"), minutes: 6,
		module: "opentofu", main: "github.com/opentofu/opentofu/cmd/tofu", settings: []string{"github.com/opentofu/opentofu/version.dev=no"}})

	add(Tool{Name: "golangci-lint", Version: GolangciLint, fits: span{version{2, 6, 0}, version{3, 0, 0}}, askVersion: []string{"version"},
		release: githubRelease("golangci/golangci-lint", "golangci-lint-{number}-linux-{arch}.tar.gz", "golangci-lint-{number}-checksums.txt",
			"golangci-lint-{number}-linux-{arch}/golangci-lint"), minutes: 8,
		module: "golangci-lint", main: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"})
	add(Tool{Name: "gotestsum", Version: Gotestsum, fits: span{version{1, 12, 0}, version{2, 0, 0}}, askVersion: []string{"--version"},
		module: "gotestsum", main: "gotest.tools/gotestsum"})
	// Whatever stands in the PATH may be of another time; this one is small.
	add(Tool{Name: "govulncheck", Version: Govulncheck, module: "govulncheck", main: "golang.org/x/vuln/cmd/govulncheck"})
	add(
		Tool{Name: "controller-gen", Version: ControllerGen, fits: span{version{0, 21, 0}, version{0, 22, 0}}, askVersion: []string{"--version"},
			module: "controller-gen", main: "sigs.k8s.io/controller-tools/cmd/controller-gen"},
	)
	add(
		Tool{
			Name:       "mpi-operator",
			Version:    MPIOperator,
			fits:       span{version{0, 8, 0}, version{0, 9, 0}},
			askVersion: []string{"--version"},
			static:     true,
			module:     "mpi-operator",
			main:       "github.com/kubeflow/mpi-operator/cmd/mpi-operator",
		},
	)
	add(Tool{Name: "multus", Version: Multus, fits: span{version{4, 2, 0}, version{5, 0, 0}}, askVersion: []string{"--version"}, static: true,
		module: "multus", main: "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus",
		settings: []string{"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/multus.version=" + Multus}})

	never := []string{} // the PATH's command has another version, or does not report it
	for name, program := range map[string]string{"containerd-1.7": "containerd", "containerd-shim-runc-v2-1.7": "containerd-shim-runc-v2"} {
		add(Tool{Name: name, Version: Containerd1, onPath: never, named: true, binary: program, minutes: 4,
			module: "containerd-1.7", main: "github.com/containerd/containerd/cmd/" + program, tags: "no_btrfs,no_zfs,no_devmapper,no_aufs",
			settings: []string{"github.com/containerd/containerd/version.Version=" + Containerd1}})
	}
	for minor, version := range OtherKubernetes {
		for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			add(Tool{Name: OfKubernetes(program, minor), Version: version, onPath: never, named: true, minutes: 8,
				module: "kubernetes-" + minor, main: "k8s.io/kubernetes/cmd/" + program, settings: kubernetesStamps(version)})
		}
	}
	// The programs of `make test-gangs`. Their charts lie in the same modules, see ModuleDirectory.
	for _, t := range []Tool{
		{Name: "kueue", Version: Kueue, minutes: 8, main: "sigs.k8s.io/kueue/cmd/kueue"},
		{Name: "jobset", Version: JobSet, minutes: 3, main: "sigs.k8s.io/jobset"},
		{Name: "lws", Version: LWS, minutes: 3, main: "sigs.k8s.io/lws/cmd"},
	} {
		t.named, t.onPath, t.static, t.module = true, never, true, t.Name
		add(t)
	}
	// For `make test-cert-manager`: cert-manager's controllers behind commands of ours, since its own cannot be built from the proxy.
	for _, name := range []string{"controller", "cainjector"} {
		add(Tool{Name: "cert-manager-" + name, Version: CertManager, onPath: never, named: true, minutes: 3, module: "cert-manager",
			main:    "gpufabric.io/build/toolchain/modules/cert-manager/" + name,
			project: "github.com/cert-manager/cert-manager/pkg/controller"})
	}
	add(Tool{Name: "whereabouts", Version: Whereabouts, onPath: never, static: true,
		module: "whereabouts", main: "github.com/k8snetworkplumbingwg/whereabouts/cmd"})
	for _, name := range []string{"gpu-kubelet-plugin", "compute-domain-kubelet-plugin"} {
		add(Tool{Name: name, Version: NVIDIADRADriver, onPath: never,
			module: "dra-driver-nvidia-gpu", main: "sigs.k8s.io/dra-driver-nvidia-gpu/cmd/" + name})
	}
	for _, name := range []string{"nvidia-device-plugin", "gpu-feature-discovery"} {
		add(Tool{Name: name, Version: NVIDIADevicePlugin, onPath: never,
			module: "k8s-device-plugin", main: "github.com/NVIDIA/k8s-device-plugin/cmd/" + name})
	}
	add(Tool{Name: "nvidia-ctk", Version: NVIDIAToolkit, onPath: never,
		module: "nvidia-container-toolkit", main: "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"})
	add(Tool{Name: "nfd-worker", Version: NodeFeatureDiscovery, onPath: never,
		module: "node-feature-discovery", main: "sigs.k8s.io/node-feature-discovery/cmd/nfd-worker"})
	return tools
}

// kubernetesStamps are the linker's settings by which programs of Kubernetes report their version, such as v1.36.3.
func kubernetesStamps(version string) []string {
	return []string{
		"k8s.io/component-base/version.gitVersion=" + version,
		"k8s.io/component-base/version.gitMajor=1",
		"k8s.io/component-base/version.gitMinor=" + strings.Split(version, ".")[1],
		"k8s.io/client-go/pkg/version.gitVersion=" + version,
	}
}

// Names lists every tool of the catalogue, in alphabetical order.
func Names() []string {
	var names []string
	for name := range catalogue() {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// standing are the tools that are had ready where none is named.
func standing() []string {
	var names []string
	for name, tool := range catalogue() {
		if !tool.named {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// NodeTools are the tools in the node image.
func NodeTools() []string {
	return []string{"kubeadm", "kubelet", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy",
		"etcd", "coredns", "containerd", "ctr", "containerd-shim-runc-v2", "crictl"}
}

// Lookup returns the named tool, or an error that lists the names there are.
func Lookup(name string) (Tool, error) {
	t, ok := catalogue()[name]
	if !ok {
		return Tool{}, fmt.Errorf("no tool %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return t, nil
}
