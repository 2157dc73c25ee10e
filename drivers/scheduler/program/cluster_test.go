package program_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/configz"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/scheduler/program"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/manifests"
)

// patience bounds every wait; each ends with its event.
const patience = 5 * time.Minute

// cluster is a control plane with our scheduler, which has the chart's configuration and rights. Its nodes are only objects.
type cluster struct {
	whole  *testing.T // the test that the scheduler lives as long as
	admin  kubernetes.Interface
	config *rest.Config
	stop   func() // ends the scheduler
	dir    string
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := bring(t, controlplane.Options{})
	c.run()
	return c
}

// bring starts a control plane, without our scheduler.
func bring(t *testing.T, options controlplane.Options) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane; -short asks for none")
	}
	ctx := t.Context()
	binaries, err := controlplane.Binaries(ctx)
	must(t, err)
	dir, err := os.MkdirTemp("", "sched")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	options.Dir, options.Binaries = dir, binaries
	plane, err := controlplane.Start(ctx, options)
	must(t, err)
	t.Cleanup(plane.Stop)
	config, err := plane.Admin()
	must(t, err)
	admin, err := kubernetes.NewForConfig(config)
	must(t, err)
	ready, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	must(t, controlplane.AwaitDefaultAccount(ready, admin, "default"))
	c := &cluster{whole: t, admin: admin, config: config, dir: dir}
	c.install(t)
	for name, value := range map[string]int32{"low": 10, "middle": 50, "high": 100} {
		_, err := admin.SchedulingV1().PriorityClasses().Create(ctx,
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{})
		must(t, err)
	}
	return c
}

// install applies the chart's scheduler without its pod, and writes its files: the ConfigMap's content, and a kubeconfig of its
// service account.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	const namespace = "gpufabric-system"
	ctx := t.Context()
	_, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	must(t, err)
	objects, err := chart.Render(c.config, chart.Options{Chart: "../../../charts/gpufabric", Name: "gpufabric", Namespace: namespace,
		Values: map[string]any{"scheduler": map[string]any{"enabled": true, "nodeLock": true}, "webhook": map[string]any{"enabled": false}}})
	must(t, err)
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !strings.HasPrefix(o.GetName(), "gpufabric-scheduler") || o.GetKind() == "Deployment"
	})
	apply, err := manifests.NewClient(c.config)
	must(t, err)
	must(t, apply.Apply(ctx, namespace, objects...))
	configuration, err := c.admin.CoreV1().ConfigMaps(namespace).Get(ctx, "gpufabric-scheduler", metav1.GetOptions{})
	must(t, err)
	token, err := c.admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "gpufabric-scheduler", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	must(t, err)
	access := clientcmdapi.NewConfig()
	access.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	access.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	access.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	access.CurrentContext = "x"
	kubeconfig := filepath.Join(c.dir, "our-scheduler.kubeconfig")
	must(t, clientcmd.WriteToFile(*access, kubeconfig))
	var file map[string]any
	must(t, yaml.Unmarshal([]byte(configuration.Data["scheduler.yaml"]), &file))
	file["clientConnection"] = map[string]any{"kubeconfig": kubeconfig}
	// Until testElection: in one process, the lost lease of a stopped scheduler would end the tests
	file["leaderElection"].(map[string]any)["leaderElect"] = false
	c.write(t, file)
	c.lockNodes(t, false) // until testNodeLock: no one else unlocks the nodes here
}

// write sets the scheduler's configuration, which it reads at its start.
func (c *cluster) write(t *testing.T, configuration map[string]any) {
	t.Helper()
	written, err := yaml.Marshal(configuration)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.dir, "our-scheduler.yaml"), written, 0o600))
}

// lockNodes changes whether the scheduler locks nodes once it is started again.
func (c *cluster) lockNodes(t *testing.T, lock bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "our-scheduler.yaml"))
	must(t, err)
	var all map[string]any
	must(t, yaml.Unmarshal(text, &all))
	for _, plugin := range all["profiles"].([]any)[0].(map[string]any)["pluginConfig"].([]any) {
		if one := plugin.(map[string]any); one["name"] == "GPUFabricVGPU" {
			one["args"].(map[string]any)["nodeLock"] = lock
		}
	}
	c.write(t, all)
}

// run starts the scheduler in this process; c.stop ends it, and releases its lease.
func (c *cluster) run() {
	t := c.whole
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	opts := options.NewOptions()
	opts.ConfigFile = filepath.Join(c.dir, "our-scheduler.yaml")
	opts.SecureServing.BindPort = 0
	completed, scheduler, err := app.Setup(ctx, opts, program.Plugins()...)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := app.Run(ctx, completed, scheduler); err != nil && ctx.Err() == nil {
			t.Errorf("the scheduler ended: %v", err)
		}
	}()
	c.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		configz.Delete("componentconfig") // one per process, and the next scheduler registers its own
	})
	t.Cleanup(func() { c.stop() })
}

// node makes a node that registers GPUs of 49140 MiB in units of 10 MiB, split in 10, like the seed's machine with 8 of them.
func (c *cluster) node(t *testing.T, name string, gpus ...string) {
	t.Helper()
	register := ""
	for _, uuid := range gpus {
		register += uuid + ",10,4914,NVIDIA-L40S,true,hami-core:"
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{"volcano.sh/node-vgpu-register": register},
		Labels: map[string]string{"kubernetes.io/hostname": name}}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"),
		"pods":                   resource.MustParse("200"),
		"volcano.sh/vgpu-number": *resource.NewQuantity(int64(10*len(gpus)), resource.DecimalSI),
		"volcano.sh/vgpu-memory": *resource.NewQuantity(int64(4914*len(gpus)), resource.DecimalSI),
		"volcano.sh/vgpu-cores":  *resource.NewQuantity(int64(100*len(gpus)), resource.DecimalSI)}
	node.Status.Capacity = node.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	_, err := c.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
}

// pod makes a pod of our scheduler. Without a grace period it is gone when it is evicted, as there is no kubelet to end it.
func pod(name, priority, node string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		SchedulerName: "gpufabric-scheduler", PriorityClassName: priority, TerminationGracePeriodSeconds: &grace,
		NodeSelector: map[string]string{"kubernetes.io/hostname": node},
		Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // no kubelet renews the node's lease
		Containers:   []corev1.Container{{Name: "main", Image: "none"}}}}
}

// shares makes a pod's container request shares.
func shares(p *corev1.Pod, number, memory, cores int64) *corev1.Pod {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"volcano.sh/vgpu-number": *resource.NewQuantity(number, resource.DecimalSI),
		"volcano.sh/vgpu-memory": *resource.NewQuantity(memory, resource.DecimalSI),
		"volcano.sh/vgpu-cores":  *resource.NewQuantity(cores, resource.DecimalSI)}
	return p
}

func (c *cluster) create(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		_, err := c.admin.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		must(t, err)
	}
}

// await returns the pod once it is as wanted; nil means a deleted pod.
func (c *cluster) await(t *testing.T, name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := c.admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
		name).String(), ResourceVersion: "0"})
	must(t, err)
	defer watch.Stop()
	var last *corev1.Pod
	for event := range watch.ResultChan() {
		current, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch pod %s: %v", name, event.Object)
		}
		if last = current; event.Type == "DELETED" {
			current = nil
		}
		if wanted(current) {
			return last
		}
	}
	t.Fatalf("pod %s: not %s within %s; last seen %s", name, what, patience, describe(last))
	return nil
}

func describe(p *corev1.Pod) string {
	if p == nil {
		return "never"
	}
	return fmt.Sprintf("on %q with conditions %v", p.Spec.NodeName, p.Status.Conditions)
}

func (c *cluster) bound(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return c.await(t, name, "bound", func(p *corev1.Pod) bool { return p != nil && p.Spec.NodeName != "" })
}

// refused waits until the scheduler reports that a pod does not fit, and returns the message.
func (c *cluster) refused(t *testing.T, name string) string {
	t.Helper()
	var words string
	c.await(t, name, "refused", func(p *corev1.Pod) bool {
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == "Unschedulable" {
				words = condition.Message
			}
		}
		return words != ""
	})
	return words
}

func (c *cluster) delete(t *testing.T, name string) {
	t.Helper()
	must(t, c.admin.CoreV1().Pods("default").Delete(t.Context(), name, *metav1.NewDeleteOptions(0)))
}

func (c *cluster) exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := c.admin.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	return err == nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
