package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// cluster has the Secret and the configuration as the chart creates them, and a keeper whose clock the test moves.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	keeper *keeper
	now    time.Time
}

const host = "gpufabric-webhook.gpufabric-system.svc"

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, now: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), client: fake.NewClientset(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}},
		&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "w"},
			Webhooks: []admissionv1.ValidatingWebhook{{Name: "claims"}, {Name: "objects"}}},
	)}
	c.keeper = &keeper{client: c.client, now: func() time.Time { return c.now }, Options: Options{Namespace: "n", Secret: "s",
		Configuration: "w",
		Hosts:         []string{host}, Life: 90 * 24 * time.Hour, Overlap: 10 * time.Minute, Keep: 24 * time.Hour}}
	return c
}

// step takes one step, and returns when the next is due.
func (c *cluster) step() time.Time {
	c.t.Helper()
	due, err := c.keeper.step(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return due
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	secret, err := c.client.CoreV1().Secrets("n").Get(c.t.Context(), "s", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// known is the one bundle of all webhooks.
func (c *cluster) known() []byte {
	c.t.Helper()
	configuration, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(c.t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, webhook := range configuration.Webhooks {
		if !bytes.Equal(webhook.ClientConfig.CABundle, configuration.Webhooks[0].ClientConfig.CABundle) {
			c.t.Errorf("webhook %s is known by other certificates", webhook.Name)
		}
	}
	return configuration.Webhooks[0].ClientConfig.CABundle
}

// trusts reports whether the API server would believe a certificate.
func (c *cluster) trusts(cert []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.known())
	leaf := parseBundle(cert)[0]
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: c.now})
	return err
}

// TestKeeperPublishesBundleBeforePodsServe simulates a year. The kubelet brings a Secret to a pod late, so every certificate served
// in the last two hours must be trusted.
func TestKeeperPublishesBundleBeforePodsServe(t *testing.T) {
	c := newCluster(t)
	type serving struct {
		cert  []byte
		until time.Time
	}
	var past []serving
	due, end := c.step(), c.now.AddDate(1, 0, 0)
	different := map[string]bool{}
	for c.now.Before(end) {
		cert := c.secret().Data[keyServed]
		different[string(cert)] = true
		if len(past) == 0 || !bytes.Equal(past[len(past)-1].cert, cert) {
			past = append(past, serving{cert: cert})
		}
		past[len(past)-1].until = c.now.Add(2 * time.Hour)
		for _, one := range past {
			if err := c.trusts(one.cert); c.now.Before(one.until) && err != nil {
				t.Fatalf("at %s: %v", c.now, err)
			}
		}
		if got := len(parseBundle(c.known())); got > 3 {
			t.Fatalf("at %s %d certificates are known", c.now, got)
		}
		if !due.After(c.now) {
			t.Fatalf("at %s the next step is due at %s", c.now, due)
		}
		c.now = c.now.Add(min(due.Sub(c.now), 2*time.Hour))
		due = c.step()
	}
	if len(different) != 7 { // one each 60 days
		t.Errorf("%d certificates were served in a year", len(different))
	}
}

func TestKeeperWaitsOverlapBeforeServing(t *testing.T) {
	c := newCluster(t)
	c.step()
	first := c.secret().Data[keyServed]
	c.now = c.now.AddDate(0, 0, 61)
	due := c.step()
	next := c.secret().Data[keyNext]
	if len(next) == 0 || !bytes.Equal(c.secret().Data[keyServed], first) {
		t.Fatal("the next certificate is not there, or is served at once")
	}
	if err := c.trusts(next); err != nil {
		t.Fatal(err)
	}
	if want := c.now.Add(10 * time.Minute); !due.Equal(want) {
		t.Errorf("due at %s, want %s", due, want)
	}
	c.now = due
	c.step()
	if !bytes.Equal(c.secret().Data[keyServed], next) {
		t.Error("it is not served after its overlap")
	}
}

// TestKeeperServesOnlyTrustedCertificates makes writes of the configuration fail while a certificate is being replaced.
func TestKeeperServesOnlyTrustedCertificates(t *testing.T) {
	c := newCluster(t)
	c.step()
	first := c.secret().Data[keyServed]
	refuse := true
	c.client.PrependReactor("update", "validatingwebhookconfigurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return refuse, nil, errors.New("the server is away")
	})
	c.now = c.now.AddDate(0, 0, 61)
	for range 30 {
		if _, err := c.keeper.step(t.Context()); err == nil || !strings.Contains(err.Error(), "update caBundle of the webhook") {
			t.Fatalf("got %v", err)
		}
		if !bytes.Equal(c.secret().Data[keyServed], first) {
			t.Fatal("a certificate is served that the API server does not know")
		}
		c.now = c.now.Add(time.Hour)
	}
	refuse = false
	c.step()
	if !bytes.Equal(c.secret().Data[keyServed], first) {
		t.Error("the overlap counts from when the API server was told")
	}
}

func TestKeeperRestoresLostData(t *testing.T) {
	for name, spoil := range map[string]func(*corev1.Secret){
		"an empty Secret": func(s *corev1.Secret) { s.Data = nil },
		"a key of another": func(s *corev1.Secret) {
			other, err := newPair([]string{host}, time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			s.Data[keyServedKey] = other.key
		},
		"no PEM": func(s *corev1.Secret) {
			s.Data = map[string][]byte{keyServed: []byte("x"), keyServedKey: nil, keyNext: []byte("y"), keyBundle: []byte("z")}
			s.Annotations = map[string]string{annotationPublished: "yesterday", annotationPromoted: ""}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.step()
			before := c.secret().Data[keyServed]
			secret := c.secret()
			spoil(secret)
			if _, err := c.client.CoreV1().Secrets("n").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			c.step()
			after := c.secret()
			if _, err := parsePair(after.Data[keyServed], after.Data[keyServedKey]); err != nil {
				t.Fatal(err)
			}
			// Pods serve the old one until the kubelet brings the new.
			for _, cert := range [][]byte{before, after.Data[keyServed]} {
				if err := c.trusts(cert); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestKeeperReplacesCertificateOfOtherHost(t *testing.T) {
	c := newCluster(t)
	c.step()
	before := c.secret().Data[keyServed]
	c.keeper.Hosts = []string{host, "127.0.0.1"}
	c.step()
	if bytes.Equal(c.secret().Data[keyServed], before) {
		t.Error("the certificate does not name the new host")
	}
}

func TestKeeperRestoresRemovedBundle(t *testing.T) {
	c := newCluster(t)
	c.step()
	configurations := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	seen, err := configurations.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	watched, looked := c.watched(), c.looked()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.keeper.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// The first step needs no watch for its repair.
	<-looked
	<-watched
	configuration, err := configurations.Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configuration.Webhooks[1].ClientConfig.CABundle = nil
	if _, err := configurations.Update(t.Context(), configuration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	late := time.After(time.Minute)
	for removed := false; ; {
		select {
		case event := <-seen.ResultChan():
			known := len(event.Object.(*admissionv1.ValidatingWebhookConfiguration).Webhooks[1].ClientConfig.CABundle) > 0
			if removed && known {
				return
			}
			removed = !known
		case <-late:
			t.Fatal("it does not come back")
		}
	}
}

// watched is closed once a watch of the configuration is open. The fake server forgets what changes between a list and its watch,
// which a real one sends.
func (c *cluster) watched() <-chan struct{} {
	watched := make(chan struct{})
	once := sync.OnceFunc(func() { close(watched) })
	c.client.PrependWatchReactor("validatingwebhookconfigurations", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watcher, err := c.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		once()
		return true, watcher, err
	})
	return watched
}

// looked is closed once the keeper has read the configuration.
func (c *cluster) looked() <-chan struct{} {
	looked := make(chan struct{})
	once := sync.OnceFunc(func() { close(looked) })
	c.client.PrependReactor("get", "validatingwebhookconfigurations", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get := action.(clienttesting.GetAction)
		object, err := c.client.Tracker().Get(get.GetResource(), get.GetNamespace(), get.GetName())
		once()
		return true, object, err
	})
	return looked
}

func TestKeeperNamesRemedyForMissingSecret(t *testing.T) {
	c := newCluster(t)
	c.keeper.Secret = "another"
	if _, err := c.keeper.step(t.Context()); err == nil || !strings.Contains(err.Error(), "helm upgrade makes it again") {
		t.Errorf("got %v", err)
	}
}

func TestOptionsThatCannotWorkAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"no namespace": {Options{Secret: "s", Hosts: []string{host}, Life: time.Hour, Overlap: time.Minute}, "--webhook-namespace"},
		"no host":      {Options{Secret: "s", Namespace: "n", Life: time.Hour, Overlap: time.Minute}, "--webhook-host"},
		"an overlap that is too long": {Options{Secret: "s", Namespace: "n", Hosts: []string{host}, Life: time.Hour, Overlap: time.Hour},
			"--webhook-certificate-overlap"},
	} {
		if err := test.options.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&Options{}).Validate(); err != nil {
		t.Errorf("where somebody else keeps it: %v", err)
	}
}

// TestKeeperServesAfterTheClockWasSet: a machine that starts with a wrong clock gets the right time later.
func TestKeeperServesAfterTheClockWasSet(t *testing.T) {
	for name, years := range map[string]int{"back": -3, "forward": 3} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.step()
			c.now = c.now.AddDate(years, 0, 0)
			c.step()
			if err := c.trusts(c.secret().Data[keyServed]); err != nil {
				t.Error(err)
			}
			if next := c.secret().Data[keyNext]; len(next) > 0 {
				t.Error("it is replaced again at once")
			}
		})
	}
	t.Run("back while a certificate is replaced", func(t *testing.T) {
		c := newCluster(t)
		c.step()
		c.now = c.now.AddDate(0, 0, 61)
		c.step()
		next := c.secret().Data[keyNext]
		c.now = c.now.Add(-4 * time.Minute) // within what clocks may differ by
		c.step()
		c.now = c.now.Add(10 * time.Minute)
		c.step()
		if !bytes.Equal(c.secret().Data[keyServed], next) {
			t.Error("it is not served after its overlap")
		}
	})
}

func TestKeeperNoticesThatTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var ahead atomic.Int64 // nanoseconds
		c.keeper.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.keeper.run(ctx) }()
		time.Sleep(time.Minute)
		first := c.secret().Data[keyServed]
		ahead.Store(int64(100 * 24 * time.Hour))
		time.Sleep(longestWait)
		if c.now = c.keeper.now(); bytes.Equal(c.secret().Data[keyServed], first) || c.trusts(c.secret().Data[keyServed]) != nil {
			t.Error("a certificate that has ended is still served")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
