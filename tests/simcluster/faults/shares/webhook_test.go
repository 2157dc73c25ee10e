//go:build faults

package shares

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/manifests"
)

const (
	// writers is the number of concurrent writers, and each is how many claim templates each writes. Every second template
	// has an invalid configuration.
	writers = 4
	each    = 30
)

// outcomes counts the results of the writes.
type outcomes struct {
	mu                      sync.Mutex
	accepted, away, refused int
	wrong                   []string
}

// killWebhook kills each replica of the webhook, with failurePolicy Fail, while claims are written. It asserts that an invalid
// claim is never accepted, that a write which the webhook does not answer is refused in words, that accepted claims exist, and
// that writes succeed afterwards.
func killWebhook(s *scenario) {
	var o outcomes
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for i := range each {
				o.write(s, fmt.Sprintf("claim-%d-%d", w, i), i%2 == 0)
			}
		})
	}
	killers := s.n.DeploymentKillers("webhook")
	for _, killer := range killers {
		time.Sleep(time.Duration(s.random.Int64N(int64(time.Second)))) // the seed's moment
		killer.StrikeRunning()
	}
	running.Wait()
	for _, text := range o.wrong {
		s.t.Error(text)
	}
	s.t.Logf("%d writes were accepted, %d refused by the webhook, %d refused because it was away", o.accepted, o.refused, o.away)
	prove(s.t, killers...)
	s.goesOn()
}

// write writes a template and checks that the result agrees with the API server's content.
func (o *outcomes) write(s *scenario, name string, right bool) {
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	err := template(ctx, s, name, right)
	_, got := s.n.Client.ResourceV1().ResourceClaimTemplates(s.n.Name).Get(ctx, name, metav1.GetOptions{})
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil && right && got == nil:
		o.accepted++
	case err == nil:
		o.wrong = append(o.wrong, fmt.Sprintf("%s was accepted (its configuration is right: %t), and reading it gives %v", name, right, got))
	case !apierrors.IsNotFound(got):
		o.wrong = append(o.wrong, fmt.Sprintf("%s was refused, and reading it gives %v", name, got))
	case strings.Contains(err.Error(), "failed calling webhook"):
		o.away++
	case !right && strings.Contains(err.Error(), "Longest"):
		o.refused++
	default:
		o.wrong = append(o.wrong, fmt.Sprintf("%s (its configuration is right: %t) was refused, and not in words: %v", name, right, err))
	}
}

func template(ctx context.Context, s *scenario, name string, right bool) error {
	interval := "Long"
	if !right {
		interval = "Longest"
	}
	objects, err := manifests.Parse(fmt.Appendf(nil, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}], config: [{requests: [gpu], opaque: {
  driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing,
  timeSlicingConfig: {interval: %s}}}}}]}}}
`, name, interval))
	if err != nil {
		return err
	}
	return s.n.Manifests.Apply(ctx, s.n.Name, objects...)
}

// goesOn waits until right configurations are accepted again and wrong ones refused with the webhook's reason.
func (s *scenario) goesOn() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var right, wrong error
	tries := 0
	if err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) { // probes have no event
		tries++
		right, wrong = template(ctx, s, fmt.Sprint("right-", tries), true), template(ctx, s, fmt.Sprint("wrong-", tries), false)
		return right == nil && wrong != nil && strings.Contains(wrong.Error(), "Longest"), nil
	}); err != nil {
		s.t.Fatalf("the webhook does not answer as before: %v; %v (%v)", right, wrong, err)
	}
}
