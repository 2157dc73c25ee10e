package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/simcluster/audit"
	"gpufabric.io/tests/simcluster/chart"
	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/manifests"
	"gpufabric.io/tests/simcluster/process"
)

// ControllerOptions define what to measure of the controller of compute domains alone.
type ControllerOptions struct {
	// Nodes are the sizes; each is a whole number of racks.
	Nodes []int
	// Dir is the directory of the control planes, one after another.
	Dir string
	// Binaries are the control plane's programs, Program is gpufabric.
	Binaries map[string]string
	Program  string
	// AtOnce is how many domains the first formation has; the second has one for each rack.
	AtOnce int
	// Progress receives a line for each step.
	Progress func(format string, args ...any)
}

// ControllerResult is what was measured at one size. Durations are seconds.
type ControllerResult struct {
	Nodes, Racks int
	// Made is what it took to make the nodes. Cliques is from the controller's start until the IMEX daemons of every clique were Ready, which
	// the player makes ready at once.
	Made, Cliques float64
	// Alone is how long the player's writes for AtOnce domains take where there is no controller: what no controller can be faster than.
	Alone float64
	// CliqueWrites are the controller's writes until then, by verb and resource, Events apart.
	CliqueWrites map[string]int
	// Formations are that of AtOnce domains, and that of a domain for each rack.
	Formations []Formation
	// IdleWrites are its writes in IdleTime without a change, its lease apart.
	IdleWrites map[string]int
	// Memory is the controller's highest, in MiB; Processor is its processor time in seconds.
	Memory, Processor float64
	// ServerMemory is the API server's at the end, in MiB.
	ServerMemory float64
	Total        float64
}

// Formation is what was measured of domains that were made at the same time.
type Formation struct {
	Domains, Nodes int
	// Ready are from a domain's creation to its Ready, and Lag from the label of its last node to that, sorted.
	Ready, Lag []float64
	// SlowestLabelled is when the domain with the largest Lag had its last label, in seconds after the first domain was made.
	SlowestLabelled float64
	// Deleted is from the deletion of all of them until none was left.
	Deleted float64
	// Writes are the controller's until all were Ready, and DeletedWrites those of their end, by verb and resource, Events apart. Reads are
	// its requests that are neither writes nor watches, in both.
	Writes, DeletedWrites, Reads map[string]int
	Events, Conflicts            int
	// Processor is the controller's processor time, in seconds.
	Processor float64
}

// RunController measures every size, and returns what it found so far when one fails.
func RunController(ctx context.Context, options ControllerOptions) ([]ControllerResult, error) {
	var results []ControllerResult
	for _, nodes := range options.Nodes {
		options.Progress("%d nodes", nodes)
		m := controllerMeasurement{options: options, dir: filepath.Join(options.Dir, fmt.Sprint(nodes))}
		m.result.Nodes, m.result.Racks = nodes, nodes/RackSize
		err := m.run(ctx)
		if len(m.result.Formations) > 0 {
			results = append(results, m.result)
		}
		if err != nil {
			return results, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return results, nil
}

type controllerMeasurement struct {
	options ControllerOptions
	dir     string
	result  ControllerResult

	plane      *controlplane.ControlPlane
	config     *rest.Config
	client     kubernetes.Interface
	manifests  *manifests.Client
	played     *played
	controller *process.Process
	domains    *domainWatch
}

// controllerStep bounds each step at the largest size.
const controllerStep = 20 * time.Minute

func (m *controllerMeasurement) run(ctx context.Context) (err error) {
	begin := time.Now()
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of a control plane: %w", err)
	}
	if err := m.start(ctx); err != nil {
		return err
	}
	defer m.plane.Stop()
	begun := time.Now()
	if m.played, err = newPlayed(ctx, m.client, m.result.Nodes); err != nil {
		return err
	}
	m.result.Made = time.Since(begun).Seconds()
	m.options.Progress("  %d nodes made: %.1f s", m.result.Nodes, m.result.Made)
	if err := m.alone(ctx); err != nil {
		return err
	}
	playing, stop := context.WithCancel(ctx)
	ended, err := m.played.play(playing)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		err = errors.Join(err, ended())
	}()
	if m.domains, err = watchDomains(playing, m.manifests.Objects()); err != nil {
		return err
	}
	if err := m.cliques(ctx); err != nil {
		return err
	}
	defer m.controller.Stop(10 * time.Second)
	for _, count := range slices.Compact([]int{min(m.options.AtOnce, m.result.Racks), m.result.Racks}) {
		if err := m.form(ctx, count); err != nil {
			return fmt.Errorf("%d domains at once: %w", count, err)
		}
	}
	if err := m.idle(ctx); err != nil {
		return err
	}
	m.result.Total = time.Since(begin).Seconds()
	return m.used()
}

// alone plays what the nodes write for the first formation before there is a controller.
func (m *controllerMeasurement) alone(ctx context.Context) error {
	count := min(m.options.AtOnce, m.result.Racks)
	name := func(i int) string { return fmt.Sprintf("alone-rack-%03d-channel", i) }
	begin := time.Now()
	if err := atOnce(count, func(i int) error {
		m.played.expect(name(i), m.played.racks[i])
		return m.played.join(ctx, claimTemplate(name(i)))
	}); err != nil {
		return err
	}
	m.result.Alone = time.Since(begin).Seconds()
	m.options.Progress("  the nodes' writes for %d domains, without a controller: %.1f s", count, m.result.Alone)
	return atOnce(count, func(i int) error { return m.played.end(ctx, name(i)) })
}

// start brings a control plane up with the chart's objects. No DaemonSet or Deployment starts anything: the controller manager runs no
// more.
func (m *controllerMeasurement) start(ctx context.Context) (err error) {
	m.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: m.dir, Binaries: m.options.Binaries, Audit: []string{system}})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.plane.Stop()
		}
	}()
	if m.config, err = m.plane.Admin(); err != nil {
		return err
	}
	m.config.QPS, m.config.Burst = -1, -1
	typed := rest.CopyConfig(m.config)
	typed.ContentType = "application/vnd.kubernetes.protobuf"
	if m.client, err = kubernetes.NewForConfig(typed); err != nil {
		return fmt.Errorf("make the administrator's client: %w", err)
	}
	if m.manifests, err = manifests.NewClient(m.config); err != nil {
		return err
	}
	root, err := repository.Root()
	if err != nil {
		return err
	}
	values := fabric.Values()
	values["computeDomains"] = map[string]any{"imex": "clique"}
	if err := chart.Install(ctx, m.config, chart.Options{
		Chart: filepath.Join(root, "charts/gpufabric"), Name: "gpufabric", Namespace: system, Values: values,
	}); err != nil {
		return err
	}
	// They would make pods of the chart's, count the nodes as lost, and deallocate claims whose pods they do not know.
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		m.plane.Process(name).Stop(2 * time.Second)
	}
	_, err = m.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the namespace: %w", err)
	}
	return nil
}

// cliques starts the controller, and waits until the domain of every clique is Ready.
func (m *controllerMeasurement) cliques(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, controllerStep, errors.New("not every clique's IMEX daemons were Ready in time"))
	defer cancel()
	kubeconfig, err := m.kubeconfig(ctx)
	if err != nil {
		return err
	}
	deployment, err := m.client.AppsV1().Deployments(system).Get(ctx, "gpufabric-controller", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the arguments that the chart gives the controller: %w", err)
	}
	args := slices.DeleteFunc(slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args), func(arg string) bool {
		return strings.Contains(arg, "-address=") // the ports of this machine may be in use
	})
	begin := time.Now()
	m.controller, err = process.Start(process.Spec{
		Name: "controller", ClusterDir: m.dir, LogDir: filepath.Join(m.dir, "logs"), Path: m.options.Program, Args: args,
		Env: []string{"KUBECONFIG=" + kubeconfig, "POD_NAMESPACE=" + system, "POD_NAME=bench"},
	})
	if err != nil {
		return err
	}
	err = m.domains.await(ctx, func(ready map[string]time.Time) bool { return len(ready) >= m.result.Racks }, m.failed)
	if err != nil {
		m.controller.Kill()
		return fmt.Errorf("wait for the IMEX daemons of %d cliques: %w", m.result.Racks, err)
	}
	end := time.Now()
	m.result.Cliques = end.Sub(begin).Seconds()
	m.options.Progress("  %d cliques Ready: %.1f s", m.result.Racks, m.result.Cliques)
	counted := Formation{}
	err = m.count(ctx, begin, end, func(r audit.Request) { counted.take(r, false) })
	m.result.CliqueWrites = counted.Writes
	return err
}

// failed reports what has ended that a wait relies on.
func (m *controllerMeasurement) failed() error {
	if err := m.controller.Err(); err != nil {
		return err
	}
	return errors.Join(m.played.err(), m.plane.Err())
}

// kubeconfig has the rights of the controller's service account.
func (m *controllerMeasurement) kubeconfig(ctx context.Context) (string, error) {
	const account = "gpufabric-controller"
	day := int64(24 * 60 * 60)
	token, err := m.client.CoreV1().ServiceAccounts(system).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token of %s: %w", account, err)
	}
	access := m.plane.Access()
	config := clientcmdapi.NewConfig()
	config.Clusters["bench"] = &clientcmdapi.Cluster{Server: access.Server, CertificateAuthorityData: access.CA()}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: account, Namespace: system}
	config.CurrentContext = "bench"
	path := filepath.Join(m.dir, "controller.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write the controller's kubeconfig: %w", err)
	}
	return path, nil
}

// form makes a domain on each of the first count racks at once, waits until all are Ready, and deletes them.
func (m *controllerMeasurement) form(ctx context.Context, count int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, controllerStep, errors.New("not all domains formed and went in time"))
	defer cancel()
	f := Formation{Domains: count, Nodes: count * RackSize}
	before, err := processorTime(m.controller.Pid())
	if err != nil {
		return err
	}
	round := fmt.Sprintf("of-%d", count)
	name := func(i int) string { return fmt.Sprintf("%s-rack-%03d", round, i) }
	for i := range count {
		m.played.expect(name(i)+"-channel", m.played.racks[i])
	}
	created := make([]time.Time, count)
	begin := time.Now()
	if err := atOnce(count, func(i int) error {
		created[i] = time.Now()
		objects, err := manifests.Parse([]byte(fmt.Sprintf(rackDomain, name(i), RackSize)))
		if err != nil {
			return err
		}
		return m.manifests.Apply(ctx, namespace, objects...)
	}); err != nil {
		return err
	}
	ready := map[string]time.Time{}
	if err := m.domains.await(ctx, func(all map[string]time.Time) bool {
		for key, at := range all {
			if rest, ours := strings.CutPrefix(key, namespace+"/"); ours && strings.HasPrefix(rest, round) {
				ready[rest] = at
			}
		}
		return len(ready) == count
	}, m.failed); err != nil {
		return fmt.Errorf("%d of %d domains are Ready: %w", len(ready), count, err)
	}
	formed := time.Now()
	for i := range count {
		f.Ready = append(f.Ready, ready[name(i)].Sub(created[i]).Seconds())
		labelled := m.played.lastLabel(name(i) + "-channel")
		lag := max(0, ready[name(i)].Sub(labelled).Seconds())
		if len(f.Lag) == 0 || lag > slices.Max(f.Lag) {
			f.SlowestLabelled = labelled.Sub(begin).Seconds()
		}
		f.Lag = append(f.Lag, lag)
	}
	slices.Sort(f.Ready)
	slices.Sort(f.Lag)
	m.options.Progress("  %d domains Ready: %.1f s", count, formed.Sub(begin).Seconds())
	if err := deleteDomains(ctx, m.manifests.Objects()); err != nil {
		return err
	}
	if err := atOnce(count, func(i int) error { return m.played.end(ctx, name(i)+"-channel") }); err != nil {
		return err
	}
	if err := m.domains.await(ctx, func(map[string]time.Time) bool { return m.domains.left(namespace) == 0 }, m.failed); err != nil {
		return fmt.Errorf("%d domains are left: %w", m.domains.left(namespace), err)
	}
	gone := time.Now()
	f.Deleted = gone.Sub(formed).Seconds()
	m.options.Progress("  %d domains gone: %.1f s", count, f.Deleted)
	after, err := processorTime(m.controller.Pid())
	if err != nil {
		return err
	}
	f.Processor = after - before
	if err := m.count(ctx, begin, gone, func(r audit.Request) { f.take(r, r.Received.After(formed)) }); err != nil {
		return err
	}
	m.result.Formations = append(m.result.Formations, f)
	return nil
}

// atOnce does something count times, as many as the API server takes at a time.
func atOnce(count int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range count {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// count reads what the controller asked of the API server between two times.
func (m *controllerMeasurement) count(ctx context.Context, begin, end time.Time, take func(audit.Request)) error {
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	return audit.Requests(controlplane.AuditLog(m.dir), func(r audit.Request) {
		if !r.Received.Before(begin) && !r.Received.After(end) && r.Object.Resource != "leases" {
			take(r)
		}
	})
}

// take counts one request.
func (f *Formation) take(r audit.Request, end bool) {
	counts := &f.Writes
	switch {
	case r.Verb == "watch":
		return
	case r.Object.Resource == "events":
		f.Events++
		return
	case !r.Writes():
		counts = &f.Reads
	case end:
		counts = &f.DeletedWrites
	}
	if *counts == nil {
		*counts = map[string]int{}
	}
	(*counts)[kind(r)]++
	if r.Response.Code == 409 {
		f.Conflicts++
	}
}

// idle counts the controller's writes when nothing changes.
func (m *controllerMeasurement) idle(ctx context.Context) error {
	if err := sleep(ctx, auditDelay); err != nil {
		return err
	}
	begin := time.Now()
	if err := sleep(ctx, idleTime); err != nil {
		return err
	}
	counted := Formation{}
	err := m.count(ctx, begin, time.Now(), func(r audit.Request) { counted.take(r, false) })
	m.result.IdleWrites = counted.Writes
	return err
}

// used reads what the controller and the API server have used.
func (m *controllerMeasurement) used() error {
	memory, err := statusKiB(m.controller.Pid(), "VmHWM")
	if err != nil {
		return err
	}
	server, err := statusKiB(m.plane.Process("kube-apiserver").Pid(), "VmRSS")
	if err != nil {
		return err
	}
	m.result.Memory, m.result.ServerMemory = memory/1024, server/1024
	m.result.Processor, err = processorTime(m.controller.Pid())
	return err
}
