package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/api/listing"
	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain/session"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/filewatch"
)

const (
	// reasonSessionEnded is the reason of the Events.
	reasonSessionEnded = "IMEXSessionEnded"
	// casualtiesPause is how long the ends of one daemon's sessions are collected after a report: a daemon that ends again and again
	// must not cause more than one Event a minute for each pod.
	casualtiesPause = time.Minute
	// reportedName is a file in the directory of the daemon's domain with the last session whose end was reported to the pods.
	reportedName = "told"
	// namedPods is how many pods the domain's Event names.
	namedPods = 5
)

// casualties notifies pods and their domains when an IMEX session of the node has ended. The driver has then disabled every client
// that had imported memory of other nodes, and a job that waits for one of these hangs without an error.
type casualties struct {
	kind     *preparer
	client   kubernetes.Interface
	recorder record.EventRecorder
	// records are the node's claims.
	records func() []claimstate.Record
	pause   time.Duration
}

// follow follows the sessions of every daemon that serves a channel here, until ctx ends.
func (c *casualties) follow(ctx context.Context, files *filewatch.Watcher) {
	following := map[types.UID]context.CancelFunc{}
	var group sync.WaitGroup
	defer group.Wait()
	for {
		servers, changed := c.kind.holdings.servers()
		for _, server := range servers {
			if following[server] != nil {
				continue
			}
			one, stop := context.WithCancel(ctx)
			following[server] = stop
			group.Go(func() { c.followOne(one, files, server) })
		}
		for server, stop := range following {
			if !slices.Contains(servers, server) {
				stop()
				delete(following, server)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			for _, stop := range following {
				stop()
			}
			return
		}
	}
}

// followOne follows the sessions of one daemon. It retries a failed report until it succeeds.
func (c *casualties) followOne(ctx context.Context, files *filewatch.Watcher, server types.UID) {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 6, Cap: time.Minute}
	retry := backoff
	changed := files.Entries(ctx, c.kind.domainDir(server), session.FileName)
	for {
		reported, err := c.reportEnds(ctx, server)
		pause := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			klog.FromContext(ctx).Error(err, "Pods are not notified yet that an IMEX session ended", "domain", server)
			pause = retry.Step()
		default:
			if retry = backoff; reported {
				pause = c.pause
			}
		}
		if pause > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// reportEnds reports the sessions that ended since its last report. It returns true if pods were affected.
func (c *casualties) reportEnds(ctx context.Context, server types.UID) (bool, error) {
	dir := c.kind.domainDir(server)
	known, err := session.Read(dir)
	if err != nil || len(known.Ends) == 0 {
		return false, err
	}
	last, err := readReported(dir)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Pods may be notified twice that an IMEX session ended")
	}
	var affected affected
	for _, end := range known.Ends {
		if end.Session > last {
			affected.end, last = end, end.Session
			affected.count++
		}
	}
	if affected.count == 0 {
		return false, nil
	}
	if err := c.find(ctx, server, &affected); err != nil {
		return false, err
	}
	c.report(&affected)
	var writer atomicfile.Writer
	err = writer.Write(filepath.Join(dir, reportedName), []byte(strconv.FormatInt(last, 10)+"\n"), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the daemon's directory went with its last claim
	}
	return len(affected.domains) > 0, err
}

// readReported reads the last reported session. A file that cannot be read gives none.
func readReported(dir string) (int64, error) {
	data, err := session.ReadFile(filepath.Join(dir, reportedName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read of which ended IMEX sessions the pods were notified: %w", err)
	}
	last, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read of which ended IMEX sessions the pods were notified: %w", err)
	}
	return last, nil
}

// affected are the pods and domains that the ends of sessions have affected.
type affected struct {
	// end is the newest end, count how many there were since the last report.
	end   session.End
	count int
	// domains are the domains that had a channel in a session that ended.
	domains []affectedDomain
}

type affectedDomain struct {
	domain *v1beta1.ComputeDomain
	pods   []corev1.ObjectReference
}

// find finds the pods that had a channel when a session ended: those of claims that were prepared in it, or in an earlier one.
// Earlier ones count, since a restarted container may have imported memory in the later session.
func (c *casualties) find(ctx context.Context, server types.UID, affected *affected) error {
	pods, namespaces := map[types.UID][]corev1.ObjectReference{}, map[types.UID]string{}
	for _, record := range c.records() {
		data, err := decode(record)
		if err != nil || record.Phase != claimstate.Prepared || data.server() != server || data.Session == 0 ||
			data.Session > affected.end.Session {
			continue
		}
		claim, err := c.client.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && claim.UID != record.UID {
			continue // its pod is gone
		}
		if err != nil {
			return fmt.Errorf("look up the pods for which claim %s/%s is reserved: %w", record.Namespace, record.Name, err)
		}
		namespaces[data.Channel] = record.Namespace
		pods[data.Channel] = append(pods[data.Channel], podsOf(claim)...)
	}
	for uid, namespace := range namespaces {
		domain, err := c.kind.domains.ByUID(ctx, namespace, "", uid)
		if err != nil {
			return err
		}
		if domain == nil { // its pods are still reported
			domain = &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		}
		affected.domains = append(affected.domains, affectedDomain{domain: domain, pods: pods[uid]})
	}
	return nil
}

// podsOf are the pods that a claim is reserved for.
func podsOf(claim *resourceapi.ResourceClaim) []corev1.ObjectReference {
	var pods []corev1.ObjectReference
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: claim.Namespace, Name: consumer.Name,
				UID: consumer.UID})
		}
	}
	return pods
}

// report makes an Event for each pod, and one for each domain.
func (c *casualties) report(affected *affected) {
	what := fmt.Sprintf("the IMEX session of node %s ended at %s (%s)", c.kind.node.name, affected.end.At.UTC().Format(time.RFC3339),
		affected.end.Why)
	if affected.count > 1 {
		what = fmt.Sprintf("%d IMEX sessions of node %s ended, the last at %s (%s)", affected.count, c.kind.node.name,
			affected.end.At.UTC().Format(time.RFC3339), affected.end.Why)
	}
	for _, one := range affected.domains {
		var names []string
		for i := range one.pods {
			names = append(names, one.pods[i].Name)
			c.recorder.Event(&one.pods[i], corev1.EventTypeWarning, reasonSessionEnded, what+": the driver has disabled every process of this pod "+
				"that had imported memory of other nodes. A job that did cannot go on: start it again")
		}
		if one.domain.Name == "" {
			continue
		}
		slices.Sort(names)
		c.recorder.Event(&corev1.ObjectReference{
			APIVersion: v1beta1.SchemeGroupVersion().String(), Kind: "ComputeDomain", Namespace: one.domain.Namespace, Name: one.domain.Name,
			UID: one.domain.UID,
		}, corev1.EventTypeWarning, reasonSessionEnded, what+": what these pods there had imported from other nodes is gone: "+
			listing.First(names, namedPods, ", "))
	}
}
