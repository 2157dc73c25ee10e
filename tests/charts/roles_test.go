package charts

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestTheRightsSufficeForADomainToBeMadeAndUnmade runs the program itself as the chart's service accounts, with tokens bound to pods as
// the kubelet's are: a domain gets its templates and DaemonSet and loses them again, and a node publishes its devices.
func TestTheRightsSufficeForADomainToBeMadeAndUnmade(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	program := buildProgram(t)
	live := startServer(t)
	if _, err := newHelm(t, live.config).install("gpufabric", load(t, "gpufabric"), nil); err != nil {
		t.Fatal(err)
	}
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	controller := start(t, program, kubeconfig(t, live.config, admin, "gpufabric-controller"),
		"controller", "--namespace="+namespace, "--image=registry.example/gpufabric")
	root := shortDir(t)
	plugin := start(t, program, kubeconfig(t, live.config, admin, "gpufabric-compute-domain-plugin"),
		"compute-domain-plugin", "--namespace="+namespace, "--node-name=node-a", "--driver-root="+root, "--kubelet-root="+root,
		"--cdi-root="+filepath.Join(root, "cdi"), "--state-dir="+filepath.Join(root, "state"))

	slices := admin.ResourceV1().ResourceSlices()
	await(t, "the node's ResourceSlice", func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return slices.Watch(ctx, o) }, watch.Added)

	live.addDomain(t, "made")
	templates, daemons := admin.ResourceV1().ResourceClaimTemplates("default"), admin.AppsV1().DaemonSets(namespace)
	ofDomain := metav1.ListOptions{LabelSelector: "resource.nvidia.com/computeDomain"}
	await(t, "the domain's template", templates.Watch, watch.Added, ofDomain)
	await(t, "the domain's DaemonSet", daemons.Watch, watch.Added, ofDomain)

	domains := live.client.Resource(domainResource).Namespace("default")
	if err := domains.Delete(t.Context(), "made", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the domain's end", domains.Watch, watch.Deleted)
	for what, output := range map[string]*bytes.Buffer{"controller": controller(), "compute-domain-plugin": plugin()} {
		for _, line := range strings.Split(output.String(), "\n") {
			if strings.Contains(strings.ToLower(line), "forbidden") {
				t.Errorf("the %s lacks a right: %s", what, line)
			}
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", what, output)
		}
	}
}

// await returns when an object had the change, or fails the test. The watch begins with what stands.
func await(t *testing.T, what string, open func(context.Context, metav1.ListOptions) (watch.Interface, error), change watch.EventType, options ...metav1.ListOptions) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	changes, err := open(ctx, append(options, metav1.ListOptions{})[0])
	if err != nil {
		t.Fatalf("await %s: %v", what, err)
	}
	defer changes.Stop()
	for event := range changes.ResultChan() {
		if event.Type == change {
			return
		}
	}
	t.Errorf("%s did not come within a minute", what)
}

// start runs the program until the test ends; the result stops it and returns what it said.
func start(t *testing.T, program, kubeconfig string, args ...string) func() *bytes.Buffer {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() *bytes.Buffer {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait() // how it ends is not what is tested
		}
		return output
	}
	t.Cleanup(func() {
		if stop(); t.Failed() {
			t.Logf("gpufabric %s said:\n%s", args[0], output)
		}
	})
	return stop
}

// kubeconfig writes one with the token that a pod of a service account has on node-a.
func kubeconfig(t *testing.T, server *rest.Config, admin kubernetes.Interface, account string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace},
		Spec:       corev1.PodSpec{ServiceAccountName: account, NodeName: "node-a", Containers: []corev1.Container{{Name: "ctr", Image: "registry.example/gpufabric"}}},
	}
	made, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: made.Name, UID: made.UID},
	}}
	token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: server.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// shortDir is a temporary directory whose path leaves room for a socket's name (107 bytes in all).
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpufabric")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
