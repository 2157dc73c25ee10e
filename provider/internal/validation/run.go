package validation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/object"
	"gpufabric.io/provider/internal/release"
)

// Report is the result of a check that passed.
type Report struct {
	Nodes      []string   // that took part, sorted
	Bandwidths Bandwidths // of Bandwidth
}

// FailedError means that the job ran and did not prove the fabric, or did not come to run in time.
type FailedError struct {
	Check   Check
	Reasons []string
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("the %s test %s/%s failed: %s", e.Check.Test, e.Check.Namespace, e.Check.Name, strings.Join(e.Reasons, "; "))
}

// TakenError means that a domain or a job of the check's name exists already. It belongs to a user, or to an earlier check that was kept,
// whose end would pass for this one's.
type TakenError struct {
	Kind string
	Key  object.Key
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s %s exists already", e.Kind, e.Key)
}

// Run makes the check's domain and job, follows them until the job ends or ctx does, and returns its result; say receives its progress,
// one sentence at a time and never twice the same, and may be called from several goroutines. Errors: *TakenError before anything was made,
// *FailedError, *object.MissingKindError, or the API server's. The created objects stay: Remove takes it away.
func Run(ctx context.Context, client *cluster.Client, c Check, say func(string)) (Report, error) {
	theDomain, job, err := c.objects()
	if err != nil {
		return Report{}, err
	}
	domains := object.NewStore(client, domain.Kind)
	key := object.Key{Namespace: c.Namespace, Name: c.Name}
	for _, kind := range []object.Kind{domain.Kind, c.job()} {
		if there, err := object.NewStore(client, kind).Get(ctx, key); err != nil {
			return Report{}, err
		} else if there != nil {
			return Report{}, &TakenError{kind.Name, key}
		}
	}
	if _, err := domains.Add(ctx, theDomain); err != nil {
		return Report{}, err
	}
	watching, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = domains.Wait(watching, key, telling(say)) // reports progress only; the job's end counts
	})
	ended, err := c.follow(ctx, client, job)
	stop()
	group.Wait()
	if err != nil {
		return Report{}, c.unfinished(ctx, client, err)
	}
	pods, err := c.pods(ctx, client)
	if err != nil {
		return Report{}, err
	}
	if condition(ended, "Failed") != "" {
		return Report{}, &FailedError{c, c.troubles(ctx, client, pods, condition(ended, "Failed"))}
	}
	return c.read(ctx, client, pods, say)
}

// follow makes the job once its pods can claim channels, and returns it when it has ended.
func (c Check) follow(ctx context.Context, client *cluster.Client, job *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	template := object.Key{Namespace: c.Namespace, Name: c.template()}
	if _, err := object.NewStore(client, domain.ClaimTemplateKind).Wait(ctx, template,
		func(obj *unstructured.Unstructured) (bool, error) { return obj != nil, nil }); err != nil {
		return nil, err
	}
	jobs := object.NewStore(client, c.job())
	if _, err := jobs.Add(ctx, job); err != nil {
		return nil, err
	}
	return jobs.Wait(ctx, object.Key{Namespace: c.Namespace, Name: c.Name}, finished)
}

// telling returns a condition that never holds and reports each change of the domain's missing parts.
func telling(say func(string)) object.Condition {
	reported := ""
	return func(obj *unstructured.Unstructured) (bool, error) {
		if obj == nil {
			return false, nil
		}
		now := domain.Read(obj).Missing()
		if now == "" {
			now = "the domain is Ready"
		}
		if now != reported {
			reported = now
			say(now)
		}
		return false, nil
	}
}

// finished is the condition that a Job or an MPIJob has ended.
func finished(obj *unstructured.Unstructured) (bool, error) {
	if obj == nil {
		return false, object.ErrGone
	}
	for _, end := range []string{"Complete", "Succeeded", "Failed"} {
		if condition(obj, end) != "" {
			return true, nil
		}
	}
	return false, nil
}

// condition returns the message of a true condition, or "" when it is not true. Jobs and MPIJobs agree on the form of conditions.
func condition(obj *unstructured.Unstructured, kind string) string {
	type conditioned struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	job, err := object.Read[conditioned](obj)
	if err != nil {
		return ""
	}
	for _, c := range job.Status.Conditions {
		if c.Type == kind && c.Status == metav1.ConditionTrue {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

func (c Check) pods(ctx context.Context, client *cluster.Client) ([]corev1.Pod, error) {
	list, err := client.Typed.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: checkLabel + "=" + c.Name})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the %s test: %w", c.Test, err)
	}
	return list.Items, nil
}

// unfinished reports the reason for which a check ran out of time.
func (c Check) unfinished(ctx context.Context, client *cluster.Client, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, object.ErrGone) {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	pods, listErr := c.pods(ctx, client)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	what := "the job did not end in time"
	if errors.Is(err, object.ErrGone) {
		what = "somebody deleted the job"
	}
	if obj, _ := object.NewStore(client, domain.Kind).Get(ctx, object.Key{Namespace: c.Namespace, Name: c.Name}); obj != nil {
		if missing := domain.Read(obj).Missing(); missing != "" {
			what += "; domain: " + missing
		}
	}
	return &FailedError{c, c.troubles(ctx, client, pods, what)}
}

// troubles adds the pods' problems to the known ones.
func (c Check) troubles(ctx context.Context, client *cluster.Client, pods []corev1.Pod, first string) []string {
	reasons := []string{first}
	for i := range pods {
		why := release.PodTrouble(&pods[i])
		if pods[i].Status.Phase == corev1.PodFailed {
			if text, err := c.log(ctx, client, &pods[i]); err == nil && strings.TrimSpace(text) != "" {
				why += "; it printed: " + lastLines(text, 5)
			}
		}
		if why != "" {
			reasons = append(reasons, why)
		}
	}
	if len(pods) == 0 {
		reasons = append(reasons, "no pod was created")
	}
	return reasons
}

func (c Check) log(ctx context.Context, client *cluster.Client, pod *corev1.Pod) (string, error) {
	text, err := client.Typed.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return string(text), nil
}

// read takes the result from the logs of an ended job's pods.
func (c Check) read(ctx context.Context, client *cluster.Client, pods []corev1.Pod, say func(string)) (Report, error) {
	var report Report
	var output strings.Builder
	for i := range pods {
		pod := &pods[i]
		if launcher := c.Test == Bandwidth && len(pod.Spec.ResourceClaims) == 0; !launcher {
			report.Nodes = append(report.Nodes, pod.Spec.NodeName)
			if c.Test == Bandwidth {
				continue // a worker prints only sshd's lines
			}
		}
		text, err := c.log(ctx, client, pod)
		if err != nil {
			return report, err
		}
		output.WriteString(text)
		if c.Test == Ping {
			say(strings.TrimSpace(text))
		}
	}
	slices.Sort(report.Nodes)
	report.Nodes = slices.Compact(report.Nodes)
	if c.Test == Bandwidth {
		var err error
		if report.Bandwidths, err = readBandwidths(output.String()); err != nil {
			return report, &FailedError{c, []string{err.Error()}}
		}
		return report, nil // the job's own cleaning up may have taken workers away already
	}
	if int64(len(report.Nodes)) < c.Nodes {
		return report, &FailedError{
			c,
			[]string{fmt.Sprintf("%d nodes took part (%s), not %d", len(report.Nodes), strings.Join(report.Nodes, ", "), c.Nodes)},
		}
	}
	return report, nil
}

// Remove deletes the objects of Run and waits until they are gone or ctx ends. An object with the check's name and without its
// label stays, with an error.
func Remove(ctx context.Context, client *cluster.Client, c Check) error {
	key := object.Key{Namespace: c.Namespace, Name: c.Name}
	var errs []error
	for _, kind := range []object.Kind{c.job(), domain.Kind} { // the domain goes when its pods have
		store := object.NewStore(client, kind)
		there, err := store.Get(ctx, key)
		switch {
		case err != nil || there == nil:
		case there.GetLabels()[checkLabel] != c.Name:
			err = errors.New("no check made it")
		default:
			_, err = store.Delete(ctx, key, object.RecordOf(there))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s %s: %w", kind.Name, key, err))
		}
	}
	return errors.Join(errs...)
}
