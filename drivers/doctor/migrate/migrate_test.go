package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// The pages and the command have one source.
func TestRulesAreRowsOfThePages(t *testing.T) {
	var pages string
	for _, name := range []string{"migrate.md", "from-hami.md"} {
		content, err := os.ReadFile("../../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(content)
	}
	rules, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range rules {
		if row := fmt.Sprintf("| %s | %s |", r.There, r.Here); !strings.Contains(pages, row) {
			t.Errorf("rule %s is no row of docs/migrate.md or docs/from-hami.md: %s", name, row)
		}
		if r.Verdict != Unchanged && r.Verdict != Change && r.Verdict != NotServed {
			t.Errorf("rule %s: verdict %q", name, r.Verdict)
		}
	}
}

// pod is the template of a container with limits.
func pod(limits ...string) corev1.PodTemplateSpec {
	all := corev1.ResourceList{}
	for _, name := range limits {
		all[corev1.ResourceName(name)] = resource.MustParse("2")
	}
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
		Resources: corev1.ResourceRequirements{Limits: all}}}}}
}

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "team", Name: name}
}

func ownedBy(name, kind string) metav1.ObjectMeta {
	m := objectMeta(name)
	m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/v1", Kind: kind, Name: "o", Controller: ptr.To(true)}}
	return m
}

func claim(class, parameters string) resourceapi.ResourceClaimSpec {
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}}}
	if parameters != "" {
		spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.nvidia.com", Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}}}
	}
	return spec
}

func cluster(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	// A scheme of its own: the fake client adds the unstructured kinds to it.
	kinds := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if u, ok := o.(*unstructured.Unstructured); ok {
			gvk := u.GroupVersionKind()
			kinds.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
			kinds.AddKnownTypeWithName(gvk.GroupVersion().WithKind(gvk.Kind+"List"), &unstructured.UnstructuredList{})
		}
	}
	return fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).Build()
}

func custom(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name},
		"spec": spec}}
}

// rows are a plan's findings in short.
func rows(p *Plan) map[string]string {
	out := map[string]string{}
	for _, f := range p.Findings {
		out[f.Object+" "+f.Field] = f.Rule + ": " + string(f.Verdict)
	}
	return out
}

func TestPlanNamesEachObjectWithItsVerdict(t *testing.T) {
	const limits = "spec.template.spec.containers[0].resources.limits"
	hami := pod("nvidia.com/gpu", "nvidia.com/gpumem")
	hami.Annotations = map[string]string{"hami.io/vgpu-mode": "mps"}
	c := cluster(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&appsv1.Deployment{ObjectMeta: objectMeta("whole"), Spec: appsv1.DeploymentSpec{Template: pod("nvidia.com/gpu", "rdma/hca_shared")}},
		&appsv1.Deployment{ObjectMeta: objectMeta("plain"), Spec: appsv1.DeploymentSpec{Template: pod("cpu")}},
		&appsv1.ReplicaSet{ObjectMeta: ownedBy("whole-1", "Deployment"), Spec: appsv1.ReplicaSetSpec{Template: pod("nvidia.com/gpu")}},
		&batchv1.CronJob{ObjectMeta: objectMeta("nightly"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{
			Spec: batchv1.JobSpec{Template: pod("nvidia.com/mig-1g.5gb")}}}},
		&appsv1.StatefulSet{ObjectMeta: objectMeta("shares"), Spec: appsv1.StatefulSetSpec{Template: hami}},
		&corev1.Pod{ObjectMeta: ownedBy("torch", "PyTorchJob"), Spec: pod("nvidia.com/hostdev").Spec},
		&corev1.Pod{ObjectMeta: objectMeta("ended"), Spec: pod("nvidia.com/gpu").Spec, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.nvidia.com'"}}}}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "fpga"}},
		&resourceapi.ResourceClaimTemplate{ObjectMeta: objectMeta("one"), Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claim("big", "")}},
		&resourceapi.ResourceClaimTemplate{ObjectMeta: objectMeta("wrong"), Spec: resourceapi.ResourceClaimTemplateSpec{
			Spec: claim("gpu.nvidia.com", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","colour":"red"}`)}},
		&resourceapi.ResourceClaim{ObjectMeta: objectMeta("vm"), Spec: claim("vfio.gpu.nvidia.com", "")},
		&resourceapi.ResourceClaim{ObjectMeta: objectMeta("card"), Spec: claim("fpga", "")},
		&resourceapi.ResourceClaim{ObjectMeta: ownedBy("pod-claim", "Pod"), Spec: claim("big", "")},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "nvidia-device-plugin-daemonset"}},
		custom("nvidia.com/v1", "ClusterPolicy", "cluster-policy", map[string]any{"devicePlugin": map[string]any{"enabled": true},
			"migManager": map[string]any{"enabled": false}}),
		custom("mellanox.com/v1alpha1", "NicClusterPolicy", "nic-cluster-policy", nil),
		custom("resource.nvidia.com/v1beta1", "ComputeDomain", "rack", nil),
	)
	plan, err := Read(t.Context(), c, "")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, row := range [][2]string{
		{"deployment team/whole " + limits + "[nvidia.com/gpu]", "whole: unchanged"},
		{"deployment team/whole " + limits + "[rdma/hca_shared]", "rdma: unchanged"},
		{"statefulset team/shares " + limits + "[nvidia.com/gpu]", "hami-number: change"},
		{"statefulset team/shares " + limits + "[nvidia.com/gpumem]", "hami-memory: change"},
		{"statefulset team/shares spec.template.metadata.annotations[hami.io/vgpu-mode]", "hami: change"},
		{"cronjob team/nightly spec.jobTemplate.spec.template.spec.containers[0].resources.limits[nvidia.com/mig-1g.5gb]", "mig: not served"},
		{"pod team/torch of pytorchjob o spec.containers[0].resources.limits[nvidia.com/hostdev]", "other: not served"},
		{"deviceclass gpu.nvidia.com ", "classes: unchanged"},
		{"deviceclass big ", "claims: unchanged"},
		{"resourceclaimtemplate team/one spec.spec.devices.requests[0].exactly.deviceClassName", "claims: unchanged"},
		{"resourceclaimtemplate team/wrong spec.spec.devices.config[0].opaque.parameters", "configuration: change"},
		{"resourceclaim team/vm spec.devices.requests[0].exactly.deviceClassName", "passthrough: unchanged"},
		{"daemonset gpu-operator/nvidia-device-plugin-daemonset ", "plugin: change"},
		{"clusterpolicy cluster-policy spec.devicePlugin.enabled", "operator: change"},
		{"nicclusterpolicy nic-cluster-policy ", "nic-policy: unchanged"},
		{"computedomain rack ", "claims: unchanged"},
	} {
		want[row[0]] = row[1]
	}
	got := rows(plan)
	for row, rule := range want {
		if got[row] != rule {
			t.Errorf("%q is %q, want %q", row, got[row], rule)
		}
		delete(got, row)
	}
	if len(got) > 0 {
		t.Errorf("rows too many: %v", got)
	}
	if len(plan.Missing) > 0 {
		t.Errorf("not read: %v", plan.Missing)
	}
	if first, last := plan.Findings[0].Verdict, plan.Findings[len(plan.Findings)-1].Verdict; first != NotServed || last != Unchanged {
		t.Errorf("the order begins with %q and ends with %q", first, last)
	}
	for _, f := range plan.Findings {
		if f.Rule == "configuration" && !strings.Contains(f.Here, "colour") {
			t.Errorf("the mistake is not named: %s", f.Here)
		}
	}
}

func TestPlanCountsReplicasWhereNodesShareByThem(t *testing.T) {
	c := cluster(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"nvidia.com/gpu.replicas": "4",
			"nvidia.com/gpu.sharing-strategy": "time-slicing"}}},
		&appsv1.Deployment{ObjectMeta: objectMeta("whole"), Spec: appsv1.DeploymentSpec{Template: pod("nvidia.com/gpu")}})
	plan, err := Read(t.Context(), c, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Findings) != 1 || plan.Findings[0].Rule != "replicas" {
		t.Errorf("findings: %+v", plan.Findings)
	}
}

func TestPlanNamesKindsThatAreNotReadAndFailsWhenNoneIs(t *testing.T) {
	forbidden := errors.New("nodes is forbidden")
	refuse := func(all bool) client.Reader {
		return interceptor.NewClient(cluster(t), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList,
			o ...client.ListOption) error {
			if _, nodes := list.(*corev1.NodeList); nodes || all {
				return forbidden
			}
			return c.List(ctx, list, o...)
		}})
	}
	plan, err := Read(t.Context(), refuse(false), "")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := write(&out, plan); err != nil || !strings.Contains(out.String(), "Not read: nodes: nodes is forbidden") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if _, err := Read(t.Context(), refuse(true), ""); !errors.Is(err, forbidden) {
		t.Errorf("a cluster that cannot be read: error %v", err)
	}
}

func TestWriteBoundsTheTable(t *testing.T) {
	r := &reading{rules: map[string]Rule{"whole": {Here: "a [page](p.md) of `x`", Verdict: Unchanged}}}
	for i := range maxFindings + 2 {
		r.add(fmt.Sprint("pod ", i), match{rule: "whole"})
	}
	if len(r.plan.Findings) != maxFindings || r.plan.Dropped != 2 || r.plan.Findings[0].Here != "a page (docs/p.md) of x" {
		t.Errorf("%d findings, %d dropped, the first %+v", len(r.plan.Findings), r.plan.Dropped, r.plan.Findings[0])
	}
}
