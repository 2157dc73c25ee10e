package charts

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// is selects the events of one type.
func is(kind watch.EventType) func(watch.Event) bool {
	return func(event watch.Event) bool { return event.Type == kind }
}

// await returns when an event satisfies the condition, or fails the test. The watch begins with the present objects. It never
// shows the end of an object that was deleted before; use deleteAndAwait for that.
func await(t *testing.T, what string, open func(context.Context, metav1.ListOptions) (watch.Interface, error),
	wanted func(watch.Event) bool, options metav1.ListOptions) {
	t.Helper()
	const patience = 5 * time.Minute // a machine that compiles beside this is slow
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := open(ctx, options)
	if err != nil {
		t.Fatalf("await %s: %v", what, err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if wanted(event) {
			return
		}
	}
	t.Fatalf("%s did not come within %s", what, patience)
}

// deleteAndAwait deletes an object and returns when it is gone.
func deleteAndAwait(t *testing.T, objects dynamic.ResourceInterface, name string) {
	t.Helper()
	await(t, "the end of "+name, func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		events, err := objects.Watch(ctx, options)
		if err != nil {
			return nil, err
		}
		if err := objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			events.Stop()
			return nil, err
		}
		return events, nil
	}, is(watch.Deleted), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
}

// start runs the program until the test ends. The returned function stops it and returns its output.
func start(t *testing.T, program, kubeconfig string, args ...string) func() *bytes.Buffer {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "POD_NAMESPACE="+namespace)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() *bytes.Buffer {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait() // its exit status is not tested
		}
		return output
	}
	t.Cleanup(func() {
		if stop(); t.Failed() {
			t.Logf("%s %s said:\n%s", filepath.Base(program), args[0], output)
		}
	})
	return stop
}

// kubeconfig writes one with the token that a pod of a service account has on node-a.
func kubeconfig(t *testing.T, server *rest.Config, admin kubernetes.Interface, account string) string {
	t.Helper()
	return kubeconfigOf(t, server, boundToken(t, admin, account))
}

// kubeconfigOf writes one with a token.
func kubeconfigOf(t *testing.T, server *rest.Config, token string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: server.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// boundToken makes a pod of a service account on node-a and returns its token.
func boundToken(t *testing.T, admin kubernetes.Interface, account string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace},
		Spec: corev1.PodSpec{ServiceAccountName: account, NodeName: "node-a",
			Containers: []corev1.Container{{Name: "ctr", Image: "registry.example/gpufabric"}}},
	}
	made, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // from another token of the account
		made, err = admin.CoreV1().Pods(namespace).Get(t.Context(), account, metav1.GetOptions{})
	}
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
	return token.Status.Token
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
