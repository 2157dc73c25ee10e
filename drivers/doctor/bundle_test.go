package doctor_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/rdma/apiservertest"
)

// canary is placed wherever a tenant may keep a secret. None may be in a bundle.
const canary = "canary-5c1e"

// kubelets answers an API server's calls to a kubelet: the logs of pods. Everything else goes to the server.
type kubelets struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (k kubelets) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/log") {
		return k.next.RoundTrip(r)
	}
	text := "a line of " + r.URL.Path + "\n"
	if !strings.Contains(r.URL.Path, "/namespaces/gpufabric-system/") {
		text = canary + " in a tenant's log\n"
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// secretive are the parts of a workload in which a tenant may keep a secret.
func secretive(image string) corev1.PodSpec {
	return corev1.PodSpec{Hostname: canary, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/" + canary}}}},
		Containers: []corev1.Container{{Name: "main", Image: image, Command: []string{canary}, Args: []string{"--token=" + canary},
			Env: []corev1.EnvVar{{Name: "TOKEN", Value: canary}}, WorkingDir: "/" + canary,
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/" + canary}},
			Lifecycle:    &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{canary}}}},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/" + canary,
				Port: intstr.FromInt32(80), HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: canary}}}}}}}}
}

// put puts canaries wherever a tenant, or an administrator's tool, may keep a secret.
func put(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	said := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": canary}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tenant", "gpufabric-system"} {
		must(c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: said}},
			metav1.CreateOptions{}))
	}
	at := func(namespace, name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: said}
	}
	must(c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: said}}, metav1.CreateOptions{}))
	must(c.CoreV1().Secrets("tenant").Create(ctx, &corev1.Secret{ObjectMeta: at("tenant", "s", nil),
		Data: map[string][]byte{"k": []byte(canary)}}, metav1.CreateOptions{}))
	must(c.CoreV1().ConfigMaps("gpufabric-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: at("gpufabric-system", "s", nil),
		Data: map[string]string{"k": canary}}, metav1.CreateOptions{}))
	must(c.CoreV1().ResourceQuotas("tenant").Create(ctx, &corev1.ResourceQuota{ObjectMeta: at("tenant", "q", nil)}, metav1.CreateOptions{}))
	labels := map[string]string{"app.kubernetes.io/name": "gpufabric"}
	for _, p := range []*corev1.Pod{
		{ObjectMeta: at("tenant", "plain", nil), Spec: secretive("example.invalid/a")},
		// Anybody may set a label.
		{ObjectMeta: at("tenant", "in-disguise", labels), Spec: secretive("example.invalid/b")},
		{ObjectMeta: at("gpufabric-system", "gpufabric-gpu-plugin-x", labels), Spec: secretive("example.invalid/c")},
	} {
		made, err := c.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		must(made, err)
		if p.Namespace == "tenant" {
			ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: canary}}
			made.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: ended, LastTerminationState: ended}}
			made.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debugger", State: ended, LastTerminationState: ended}}
			made.Status.Conditions = []corev1.PodCondition{{Type: "tenant.example/says", Status: corev1.ConditionTrue, Message: canary}}
			must(c.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}))
		}
	}
	selector := map[string]string{"a": "b"}
	must(c.AppsV1().DaemonSets("tenant").Create(ctx, &appsv1.DaemonSet{ObjectMeta: at("tenant", "d", nil), Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: selector, Annotations: said}, Spec: secretive("example.invalid/d")}}}, metav1.CreateOptions{}))
	must(c.AppsV1().Deployments("tenant").Create(ctx, &appsv1.Deployment{ObjectMeta: at("tenant", "d", nil), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: selector, Annotations: said}, Spec: secretive("example.invalid/e")}}}, metav1.CreateOptions{}))
	config := &resourceapi.OpaqueDeviceConfiguration{Driver: "other.example.com",
		Parameters: runtime.RawExtension{Raw: []byte(`{"kind":"K","password":"` + canary + `"}`)}}
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "x"}}},
		Config:   []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: config}}}}}
	must(c.ResourceV1().ResourceClaims("tenant").Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: at("tenant", "c", nil), Spec: spec},
		metav1.CreateOptions{}))
	must(c.ResourceV1().ResourceClaimTemplates("tenant").Create(ctx, &resourceapi.ResourceClaimTemplate{ObjectMeta: at("tenant", "t", nil),
		Spec: resourceapi.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: said}, Spec: spec}}, metav1.CreateOptions{}))
	must(c.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: said},
		Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: config}}}}}, metav1.CreateOptions{}))
	must(c.CoreV1().Events("tenant").Create(ctx, &corev1.Event{ObjectMeta: at("tenant", "e", nil), Type: corev1.EventTypeWarning,
		Reason: "Unhealthy", Message: "Liveness probe failed: " + canary, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "tenant",
			Name: "plain"}}, metav1.CreateOptions{}))
}

func TestBundleHasOurLogsAndNoSecretsOfTenants(t *testing.T) {
	config := apiservertest.Start(t)
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c)
	seen := rest.CopyConfig(config)
	seen.Wrap(func(next http.RoundTripper) http.RoundTripper { return kubelets{next} })
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	// A bundle of the tenant's namespace reads the most.
	out, status, err := run(t, seen, "bundle", "--file", file, "--namespace", "tenant", "--request-timeout=2m", "--timeout=5m")
	if status != 0 {
		t.Fatalf("bundle: %d %v\n%s", status, err, out)
	}
	files := unpack(t, file)
	own := "logs/gpufabric-system_gpufabric-gpu-plugin-x.log"
	if !strings.Contains(files[own], "a line of ") {
		t.Errorf("%s is %q", own, files[own])
	}
	pods := 0
	for name, text := range files {
		pods += strings.Count(text, "example.invalid/")
		for _, secret := range []string{canary, config.Host, strings.TrimPrefix(config.Host, "https://")} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has %q: ...%s", name, secret, text[max(0, i-200):i+len(secret)])
			}
		}
		if strings.HasPrefix(name, "logs/") && name != own {
			t.Errorf("%s is in the bundle", name)
		}
	}
	if pods == 0 {
		t.Errorf("the bundle has none of the workloads, so that it shows nothing: %d files", len(files))
	}
}

// unpack reads an archive into its files.
func unpack(t *testing.T, name string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}
