package charts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/toolchain"
)

// manual are the pages whose commands are run here, in the order in which an operator and an author read them. A block that
// begins with ```sh is run unchanged, in the checkout, with Helm's and kubectl's own programs. A block with ```sh run-by=FILE
// is tested elsewhere (tests/pages checks that FILE exists).
var manual = []string{"docs/install.md", "docs/workloads.md", "docs/troubleshooting.md", "docs/upgrade.md", "docs/uninstall.md"}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	yamlBlock  = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	// placeholders are the values that a reader fills in.
	placeholders = strings.NewReplacer(" NODE ", " node-a ", " POD\n", " a-pod\n",
		" CLAIM\n", " a-claim\n", " NODE\n", " node-a\n", " DOMAIN\n", " a-domain\n")
)

func TestPagesHaveCommandsThatWork(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd, kube-apiserver and the webhook; -short asks for none of them")
	}
	live := startServer(t)
	live.followPages(t, live.shell(t))
}

// followPages runs the commands of every page of manual.
func (s *server) followPages(t *testing.T, shell func(*testing.T, string) string) {
	t.Helper()
	admin, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The MPI operator installs its kind itself.
	shell(t, "kubectl apply --filename provider/internal/provider/testdata/mpijobs.yaml\n"+
		"kubectl wait --for=condition=Established crd/mpijobs.kubeflow.org")
	for _, page := range manual {
		t.Run(page, func(t *testing.T) {
			content, err := os.ReadFile(Dir("../" + page))
			if err != nil {
				t.Fatal(err)
			}
			switch page {
			case "docs/workloads.md":
				makeRack(t, admin)
				s.callTheWebhook(t, admin)
			case "docs/troubleshooting.md":
				shell(t, sampleObjects)
			case "docs/uninstall.md":
				playUninstall(t, admin)
			}
			blocks := shellBlock.FindAllStringSubmatch(string(content), -1)
			if len(blocks) == 0 {
				t.Fatalf("%s has no commands to run", page)
			}
			for _, block := range blocks {
				shell(t, placeholders.Replace(block[1]))
			}
			if page == "docs/workloads.md" {
				s.workloads(t, string(content), shell)
				warnsOfADomainThatDoesNotFit(t, shell)
			}
			if page == "docs/install.md" {
				s.takesEveryYAML(t, shell)
			}
		})
	}
}

// shell runs commands in the checkout as an administrator of the server would.
func (s *server) shell(t *testing.T) func(t *testing.T, commands string) string {
	t.Helper()
	return s.shellWith(t, "helm")
}

// shellWith is shell with one of the toolchain's tools as the command helm.
func (s *server) shellWith(t *testing.T, helm string) func(t *testing.T, commands string) string {
	t.Helper()
	programs, err := toolchain.Ensure(t.Context(), "kubectl", helm)
	if err != nil {
		t.Fatal(err)
	}
	bin, home := t.TempDir(), t.TempDir()
	for name, path := range map[string]string{"kubectl": programs["kubectl"], "helm": programs[helm]} {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.config.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: s.config.BearerToken}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	file := filepath.Join(home, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, commands string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		run := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
		run.Dir = Dir("..")
		run.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+file, "HOME="+home)
		said, err := run.CombinedOutput()
		if err != nil {
			t.Errorf("%s%v\n%s", commands, err, said)
		}
		return string(said)
	}
}

// sampleObjects are the objects that the commands of the troubleshooting page show.
const sampleObjects = `kubectl apply --filename - <<EOF
{apiVersion: v1, kind: Pod, metadata: {name: a-pod}, spec: {containers: [{name: main, image: i}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: a-claim},
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: a-domain},
  spec: {numNodes: 1, channel: {resourceClaimTemplate: {name: a-template}}}}
EOF
`

// takesEveryYAML sends the server every manifest that a page shows, as a strict dry run.
func (s *server) takesEveryYAML(t *testing.T, shell func(*testing.T, string) string) {
	t.Helper()
	pages, err := filepath.Glob(Dir("../docs/resources/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, Dir("../README.md"))
	var manifests []string
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(content), -1) {
			if strings.HasPrefix(block[1], "apiVersion: ") {
				manifests = append(manifests, block[1])
			}
		}
	}
	if len(manifests) < 5 {
		t.Errorf("only %d manifests were found in the pages", len(manifests))
	}
	// One kubectl for all: it continues after one that is refused, and names each.
	shell(t, "kubectl apply --server-side --validate=strict --dry-run=server --filename - <<'EOF'\n"+strings.Join(manifests, "---\n")+"EOF\n")
}

// workloads applies every manifest that the page names, strictly. The webhook and the policies check them.
func (s *server) workloads(t *testing.T, page string, shell func(*testing.T, string) string) {
	t.Helper()
	var manifests []string
	for _, match := range regexp.MustCompile(`\.\./(examples/manifests/[a-z0-9-]+\.yaml)\)`).FindAllStringSubmatch(page, -1) {
		if !slices.Contains(manifests, match[1]) {
			manifests = append(manifests, match[1])
		}
	}
	for _, task := range []string{"gpu-one.yaml", "gpu-mig.yaml", "gpu-half.yaml", "gpu-four-with-nics.yaml",
		"nvbandwidth-test-job.yaml", "notebook.yaml"} {
		if !slices.Contains(manifests, "examples/manifests/"+task) {
			t.Errorf("docs/workloads.md does not name %s", task)
		}
	}
	said := shell(t, "kubectl apply --server-side --validate=strict --force-conflicts --filename "+strings.Join(manifests, " --filename "))
	if applied := strings.Count(said, "serverside-applied"); applied < len(manifests) {
		t.Errorf("%d objects of %d manifests were applied: %s", applied, len(manifests), said)
	}
}

// callTheWebhook runs the webhook and has the API server call it. The server calls its address, since its service leads nowhere
// here. The failure policy is Fail.
func (s *server) callTheWebhook(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	dir := t.TempDir()
	authority := selfSigned(t, dir)
	port := freePort(t)
	start(t, buildProgram(t), kubeconfig(t, s.config, admin, "gpufabric-webhook"), "webhook", "--address=127.0.0.1",
		fmt.Sprintf("--port=%d", port), "--cert-dir="+dir, "--domain-warnings")
	t.Cleanup(func() { // no kubelet would end the pod whose token the webhook uses
		now := int64(0)
		if err := admin.CoreV1().Pods(namespace).Delete(context.Background(), "gpufabric-webhook",
			metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	})
	configurations := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	list, err := configurations.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d webhook configurations, %v", len(list.Items), err)
	}
	configuration := list.Items[0]
	t.Cleanup(func() { // as the chart had it, for Helm's next step
		now, err := configurations.Get(context.Background(), configuration.Name, metav1.GetOptions{})
		if err == nil {
			now.Webhooks = list.Items[0].DeepCopy().Webhooks
			_, err = configurations.Update(context.Background(), now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	})
	configuration = *configuration.DeepCopy()
	url, fail := fmt.Sprintf("https://127.0.0.1:%d/validate", port), admissionregistrationv1.Fail
	patience := int32(30) // a busy machine may not answer in the chart's 3 s, which the policy Ignore forgives
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority}
		configuration.Webhooks[i].FailurePolicy, configuration.Webhooks[i].TimeoutSeconds = &fail, &patience
	}
	if _, err := configurations.Update(t.Context(), &configuration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitRefusal(t)
}

// awaitRefusal returns when the webhook refuses a claim that is wrong.
func (s *server) awaitRefusal(t *testing.T) {
	t.Helper()
	wrong := Object{}
	const text = `{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: wrong, namespace: default},
		spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}], config: [{requests: [gpu],
		opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig,
		sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Longest}}}}}]}}}`
	if err := yaml.Unmarshal([]byte(text), &wrong.Object); err != nil {
		t.Fatal(err)
	}
	claims := s.resource(t, wrong)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // the server does not report when it begins to call it
		_, err := claims.Create(t.Context(), wrong.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "Longest") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a claim with a wrong configuration: %v", err)
		}
	}
}

// playUninstall marks the uninstall's Job as succeeded, as the Job controller would. Its work has a test of its own
// (TestUninstallRemovesOwnLabelsAndAnnotationsFromNodes).
func playUninstall(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	events, err := admin.BatchV1().Jobs(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			if job, ok := event.Object.(*batchv1.Job); ok && job.Status.Succeeded == 0 {
				finish(t, admin, job)
				return
			}
		}
	}()
	t.Cleanup(func() {
		events.Stop()
		<-done
	})
}

// TestREADMEShowsSameDomainInYAMLAndHCL checks that the two forms say the same.
func TestREADMEShowsSameDomainInYAMLAndHCL(t *testing.T) {
	content, err := os.ReadFile(Dir("../README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := yamlBlock.FindSubmatch(content)
	if block == nil {
		t.Fatal("README.md shows no manifest")
	}
	var domain struct {
		Metadata struct{ Name string }
		Spec     struct {
			NumNodes int
			Channel  struct{ ResourceClaimTemplate struct{ Name string } }
		}
	}
	if err := yaml.Unmarshal(block[1], &domain); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("name      = %q", domain.Metadata.Name), fmt.Sprintf("num_nodes = %d", domain.Spec.NumNodes),
		fmt.Sprintf("resource_claim_template = %q", domain.Spec.Channel.ResourceClaimTemplate.Name),
	} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("README.md's HCL lacks %s, which its YAML has", want)
		}
	}
}
