package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/inventory"
	"gpufabric.io/provider/internal/maintenance"
)

// matrix is what nvbandwidth prints for two nodes of two GPUs.
const matrix = `Running multinode_device_to_device_memcpy_read_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1         2         3
 0       N/A    798.02    798.25    798.02
 1    798.10       N/A    797.94    700.50
 2    798.25    798.02       N/A    798.02
 3    798.02    798.25    798.02       N/A

SUM multinode_device_to_device_memcpy_read_ce 9479.41
`

// testActions invokes each action. Doubles stand for the Job controller, the MPI operator, DaemonSets and kubelets.
func testActions(t *testing.T, s *apiserver.Server, rc string) {
	installCRD(t, s, "testdata/stack/templates/crd.yaml")
	s.ServeDomains(t, func(string) apiserver.Domain {
		return apiserver.Domain{
			Status: "Ready",
			Nodes: []map[string]any{
				{"name": "member-0", "status": "Ready", "index": int64(0)},
				{"name": "member-1", "status": "Ready", "index": int64(1)},
			},
		}
	})
	s.ServeNodes(t, map[string]string{inventory.CliqueLabel: "other.1"}, func(pod string) string {
		if strings.HasPrefix(pod, "fabric-bandwidth") {
			return matrix
		}
		return pod + " sees channel 0\n"
	}, "member-0", "member-1")
	s.RunJobs(t, func(job string) bool { return job == "broken" }, "member-0", "member-1")
	config := func(kind, body string) string {
		return as(s) + fmt.Sprintf("action \"gpufabric_%s\" \"test\" {\n  config {\n%s\n  }\n}\n", kind, body)
	}
	invoke := func(t *testing.T, kind, body string) (string, error) {
		t.Helper()
		return newCore(t).invoke(t.Context(), config(kind, body))
	}
	succeeds := func(t *testing.T, kind, body string, wants ...string) {
		t.Helper()
		out, err := invoke(t, kind, body)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		contains(t, out, wants...)
	}
	fails := func(t *testing.T, kind, body string, wants ...string) {
		t.Helper()
		out, err := invoke(t, kind, body)
		if err == nil {
			t.Fatalf("want it to fail:\n%s", out)
		}
		contains(t, out+" "+oneLine(err.Error()), wants...)
	}
	noneLeft := func(t *testing.T) {
		t.Helper()
		domains, err := s.Dynamic.Resource(computeDomains).Namespace("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		jobs, err := s.Typed.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		if len(domains.Items)+len(jobs.Items) > 0 {
			t.Errorf("%d domains and %d jobs are left", len(domains.Items), len(jobs.Items))
		}
	}

	t.Run("ping names the nodes that share an IMEX domain and leaves nothing, under the program itself", func(t *testing.T) {
		needActions(t)
		dir := t.TempDir()
		main := strings.ReplaceAll(config("validate_fabric", "num_nodes = 2"), "hashicorp/", "gpufabric/")
		must(t, os.WriteFile(filepath.Join(dir, "main.tf"), []byte(main), 0o600))
		out := newCLI(t, rc, dir, nil).run("apply", "-auto-approve", "-invoke=action.gpufabric_validate_fabric.test")
		contains(t, oneLine(out), "fabric-ping-0-0 sees channel 0", "2 nodes share an IMEX domain: member-0, member-1")
		noneLeft(t)
	})
	t.Run("ping runs on selected nodes only", func(t *testing.T) {
		succeeds(t, "validate_fabric", "num_nodes = 2\nnode_selector = { match_labels = { row = \"7\" } }", "2 nodes share an IMEX domain")
		noneLeft(t)
	})
	t.Run("a ping whose pods fail says what they printed and leaves nothing", func(t *testing.T) {
		fails(t, "validate_fabric", "num_nodes = 2\nname = \"broken\"", "Fabric not proven", "it printed: broken-0-0 sees channel 0")
		noneLeft(t)
	})
	t.Run("a ping that is to be kept stays", func(t *testing.T) {
		succeeds(t, "validate_fabric", "num_nodes = 2\nname = \"kept\"\nkeep = true", "2 nodes share")
		domains := s.Dynamic.Resource(computeDomains).Namespace("default")
		must(t, domains.Delete(t.Context(), "kept", metav1.DeleteOptions{}))
		inBackground := metav1.DeletePropagationBackground
		must(t, s.Typed.BatchV1().Jobs("default").Delete(t.Context(), "kept", metav1.DeleteOptions{PropagationPolicy: &inBackground}))
		until(t, t.Context(), "the domain is gone", func() bool {
			_, err := domains.Get(t.Context(), "kept", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
	t.Run("bandwidth without the MPI operator names the kind that is missing and leaves nothing", func(t *testing.T) {
		fails(t, "validate_fabric", "num_nodes = 2\ntest = \"bandwidth\"", "CustomResourceDefinition mpijobs.kubeflow.org")
		noneLeft(t)
	})
	t.Run("bandwidth with the MPI operator", func(t *testing.T) {
		installCRD(t, s, "testdata/mpijobs.yaml")
		t.Run("reports the slowest pair of GPUs", func(t *testing.T) {
			succeeds(
				t,
				"validate_fabric",
				"num_nodes = 2\ngpus_per_node = 2\ntest = \"bandwidth\"\nminimum_gb_per_second = 700",
				"12 pairs of GPUs on 2 nodes: 700.5 GB/s for the slowest pair, 790.0 GB/s on average",
			)
		})
		t.Run("fails where the slowest pair is too slow", func(t *testing.T) {
			fails(
				t,
				"validate_fabric",
				"num_nodes = 2\ngpus_per_node = 2\ntest = \"bandwidth\"\nminimum_gb_per_second = 750",
				"Fabric too slow",
				"reaches 700.5 GB/s, and minimum_gb_per_second is 750.0",
			)
		})
	})
	t.Run("a check of more nodes than a clique has is warned of", func(t *testing.T) {
		fails(t, "validate_fabric", "num_nodes = 40\nname = \"broken\"", "No clique has so many nodes")
	})
	t.Run("restart_imex", func(t *testing.T) { testRestartIMEX(t, s, succeeds, fails) })
	t.Run("repartition", func(t *testing.T) { testRepartition(t, s, succeeds, fails) })
}

type expectation func(t *testing.T, kind, body string, wants ...string)

func testRestartIMEX(t *testing.T, s *apiserver.Server, succeeds, fails expectation) {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
		"metadata": map[string]any{
			"name": "train",
		}, "spec": map[string]any{"numNodes": int64(2), "channel": map[string]any{"resourceClaimTemplate": map[string]any{"name": "train"}}}}}
	domains := s.Dynamic.Resource(domain.Kind.GVR()).Namespace("default")
	made, err := domains.Create(t.Context(), obj, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, domains.Delete(context.Background(), "train", metav1.DeleteOptions{})) })
	fails(t, "restart_imex", `domain = "train"`, "has no IMEX daemon's pod")
	s.KeepPods(t, "resource.nvidia.com/computeDomain")
	const namespace = "kube-system"
	pods := s.Typed.CoreV1().Pods(namespace)
	for _, node := range []string{"member-0", "member-1"} {
		_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "daemon-" + node, Labels: map[string]string{
			"resource.nvidia.com/computeDomain": string(made.GetUID()), "app.kubernetes.io/component": "imex-daemon"}},
			Spec: corev1.PodSpec{
				NodeName:   node,
				Containers: []corev1.Container{{Name: "imex-daemon", Image: "example.invalid/c"}},
			}}, metav1.CreateOptions{})
		must(t, err)
	}
	there := func(name string) bool {
		_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}
	fails(
		t,
		"restart_imex",
		"domain = \"train\"\nnodes = [\"member-7\"]",
		"has no IMEX daemon on member-7",
		"it has some on member-0, member-1",
	)
	fails(t, "restart_imex", `domain = "absent"`, "there is no ComputeDomain default/absent")
	succeeds(t, "restart_imex", "domain = \"train\"\nnodes = [\"member-1\"]", "restarted the IMEX daemons on member-1")
	if !there("daemon-member-0") || there("daemon-member-1") {
		t.Error("want the daemon on member-1, and no other, to have been ended")
	}
	succeeds(t, "restart_imex", `domain = "train"`, "restarted the IMEX daemons on member-0, member-1")
	if there("daemon-member-0") {
		t.Error("the daemon on member-0 was not ended")
	}
}

func testRepartition(t *testing.T, s *apiserver.Server, succeeds, fails expectation) {
	installCRD(t, s, filepath.Join(repository, "charts/gpufabric/files/crds/gpufabric.io_miglayouts.yaml"))
	claims, pods := s.Typed.ResourceV1().ResourceClaims("default"), s.Typed.CoreV1().Pods("default")
	// The node waits as long as the pod is there, in the GPU plugin's words.
	s.Serve(t, maintenance.MIGLayoutKind.GVR(), func(obj *unstructured.Unstructured) map[string]any {
		node := map[string]any{
			"name":               "member-0",
			"observedGeneration": obj.GetGeneration(),
			"state":              "Applied",
			"reason":             "Applied",
			"message":            "2 of 2 GPUs",
		}
		if pod, err := pods.Get(t.Context(), "trainer", metav1.GetOptions{}); err == nil && pod.DeletionTimestamp == nil {
			node["state"], node["message"] = "Waiting", "1 of 2 GPUs; waiting for GPU 1: gpu-1 (GPU-0e9c) is held by claim default/trainer-gpu"
		}
		return map[string]any{"observedGeneration": obj.GetGeneration(), "nodes": []any{node}}
	})
	_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trainer"}, Spec: corev1.PodSpec{NodeName: "member-0",
		Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}}}}, metav1.CreateOptions{})
	must(t, err)
	claim, err := claims.Create(
		t.Context(),
		&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "trainer-gpu"},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}},
				}}},
		},
		metav1.CreateOptions{},
	)
	must(t, err)
	t.Cleanup(func() { must(t, claims.Delete(context.Background(), "trainer-gpu", metav1.DeleteOptions{})) })
	claim.Status = resourcev1.ResourceClaimStatus{
		Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.nvidia.com", Pool: "p", Device: "gpu-1"}},
			},
		},
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "trainer", UID: "1"}},
	}
	_, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	must(t, err)
	layout := &unstructured.Unstructured{
		Object: map[string]any{
			"apiVersion": maintenance.MIGLayoutKind.APIVersion(),
			"kind":       "MIGLayout",
			"metadata":   map[string]any{"name": "halves"},
			"spec": map[string]any{
				"layout": "off",
				"config": map[string]any{
					"version":     "v1",
					"mig-configs": map[string]any{"off": []any{map[string]any{"devices": "all", "mig-enabled": false}}},
				},
			},
		},
	}
	layouts := s.Dynamic.Resource(maintenance.MIGLayoutKind.GVR())
	_, err = layouts.Create(t.Context(), layout, metav1.CreateOptions{})
	must(t, err)
	s.React(t, corev1.SchemeGroupVersion.WithResource("pods"), func(pod *unstructured.Unstructured) {
		if pod.GetName() == "trainer" && pod.GetDeletionTimestamp() != nil { // the plugin looks again when a GPU becomes free
			_, _ = layouts.Patch(
				t.Context(),
				"halves",
				types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"freed":"yes"}}}`),
				metav1.PatchOptions{},
			)
		}
	})

	fails(t, "repartition", `mig_layout = "absent"`, "there is no MIGLayout absent")
	fails(
		t,
		"repartition",
		"mig_layout = \"halves\"\nevict = false\ntimeouts = { invoke = \"15s\" }",
		"Not done in time",
		"held by claim default/trainer-gpu",
	)
	succeeds(t, "repartition", `mig_layout = "halves"`, "evicted pod default/trainer", "the layout stands on member-0; 1 pods were evicted")
	succeeds(t, "repartition", `mig_layout = "halves"`, "the layout stands on member-0; 0 pods were evicted")
}

// needActions skips the test, with the reason, under a Terraform without actions.
func needActions(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), os.Getenv("TF_ACC_TERRAFORM_PATH"), "version", "-json").Output()
	must(t, err)
	var said struct {
		Version string `json:"terraform_version"`
	}
	must(t, json.Unmarshal(out, &said))
	version, err := utilversion.ParseGeneric(said.Version)
	must(t, err)
	if filepath.Base(os.Getenv("TF_ACC_TERRAFORM_PATH")) == "tofu" || version.LessThan(utilversion.MustParseGeneric("1.14.0")) {
		t.Skipf(
			"skipped: actions and terraform query need Terraform 1.14, this is %s; `make toolchain` builds one, TF_ACC_TERRAFORM_PATH names it",
			version,
		)
	}
}

func contains(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

// oneLine undoes Terraform's breaking of lines, and its frames.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(text)), " ")
}
