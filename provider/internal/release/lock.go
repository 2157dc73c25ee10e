package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hashicorp/terraform-plugin-log/tflog"

	"gpufabric.io/provider/internal/object"
)

// Helm has no lock: two operations on one release destroy each other. So each operation of this provider holds a Lease in the
// release's namespace and renews it every renewEvery. A holder that has not renewed it for leaseDuration is dead, as is one whose
// process has ended on this machine.
const (
	leaseDuration = 45 * time.Second
	renewEvery    = 5 * time.Second
	leasePrefix   = "gpufabric-release-"
)

// errLockLost is the cause of a context whose lease went to another holder, or could not be renewed in time.
var errLockLost = fmt.Errorf("another run took the lease of the release, or it could not be renewed for %s (is the API server slow?): "+
	"run Terraform again, which continues from the present state", leaseDuration)

// lockLost puts the loss of the lease before an error that came of it.
func lockLost(held context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(held), errLockLost) {
		return errors.Join(errLockLost, err)
	}
	return err
}

// LockedError means that another run of Terraform is at work on a release.
type LockedError struct{ Namespace, Release, Holder string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("release %s in namespace %s is being changed by another run of Terraform (%s)", e.Release, e.Namespace, e.Holder)
}

type lock struct {
	m      *Manager
	name   string
	holder string
}

// lock takes the lease of a release, and waits where a dead process may hold it. The context that it returns ends with errLockLost when the
// lease is lost; unlock gives it back. Errors: *LockedError, or the API server's.
func (m *Manager) lock(ctx context.Context, release string) (held context.Context, unlock func(), err error) {
	l := &lock{m, release, fmt.Sprintf("%s process %d %s", object.Machine(), os.Getpid(), object.NewOwner())}
	if err := l.take(ctx); err != nil {
		return nil, nil, err
	}
	held, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	group.Go(func() { l.renew(held, cancel) })
	return held, func() {
		cancel(nil)
		group.Wait()
		l.release(ctx)
	}, nil
}

var leases = object.Kind{Group: "coordination.k8s.io", Version: "v1", Name: "Lease", Plural: "leases", Namespaced: true}

func (l *lock) take(ctx context.Context) error {
	client := l.m.client.Typed.CoordinationV1().Leases(l.m.namespace)
	for {
		lease, err := client.Get(ctx, leasePrefix+l.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leasePrefix + l.name, Namespace: l.m.namespace}}
			l.fill(lease)
			_, err = client.Create(ctx, lease, metav1.CreateOptions{FieldManager: object.FieldManager})
		case err == nil:
			if err := l.awaitDead(ctx, lease); err != nil {
				return err
			}
			l.fill(lease)
			_, err = client.Update(ctx, lease, metav1.UpdateOptions{FieldManager: object.FieldManager})
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

func (l *lock) fill(lease *coordinationv1.Lease) {
	now, seconds := metav1.NowMicro(), int32(leaseDuration/time.Second)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &l.holder, &seconds
	lease.Spec.AcquireTime, lease.Spec.RenewTime = &now, &now
}

// awaitDead returns nil when the holder of a lease is dead. It goes by this machine's clock alone.
func (l *lock) awaitDead(ctx context.Context, lease *coordinationv1.Lease) error {
	holder := ""
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if holder == "" || ended(holder) {
		return nil
	}
	tflog.Info(ctx, "waiting to see whether another run still changes the release", map[string]any{"release": l.name, "holder": holder})
	waiting, cancel := context.WithTimeout(ctx, leaseDuration)
	defer cancel()
	key := object.Key{Namespace: l.m.namespace, Name: lease.Name}
	renewed := false
	_, err := object.NewStore(l.m.client, leases).Wait(waiting, key, func(obj *unstructured.Unstructured) (bool, error) {
		renewed = obj != nil
		return obj == nil || obj.GetResourceVersion() != lease.ResourceVersion, nil
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil
	case err == nil && renewed:
		return &LockedError{l.m.namespace, l.name, holder}
	}
	return err // nil: the lease was given back
}

// ended reports whether a holder was a process of this machine that runs no more.
func ended(holder string) bool {
	rest, here := strings.CutPrefix(holder, object.Machine()+" process ")
	number, _, _ := strings.Cut(rest, " ")
	pid, err := strconv.Atoi(number)
	return here && err == nil && !object.Alive(pid)
}

func (l *lock) renew(ctx context.Context, lost context.CancelCauseFunc) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := l.renewOnce(ctx)
		if err == nil {
			last = time.Now()
		} else if errors.Is(err, errLockLost) || time.Since(last) > leaseDuration {
			lost(errLockLost)
			return
		}
	}
}

func (l *lock) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	client := l.m.client.Typed.CoordinationV1().Leases(l.m.namespace)
	lease, err := client.Get(ctx, leasePrefix+l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it goes with the namespace, at the end of an uninstall
	}
	if err != nil {
		return err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != l.holder {
		return errLockLost
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	_, err = client.Update(ctx, lease, metav1.UpdateOptions{FieldManager: object.FieldManager})
	return err
}

// release deletes the lease, if it is still this holder's. One that stays counts as dead later.
func (l *lock) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseDuration)
	defer cancel()
	client := l.m.client.Typed.CoordinationV1().Leases(l.m.namespace)
	lease, err := client.Get(ctx, leasePrefix+l.name, metav1.GetOptions{})
	if err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == l.holder {
		err = client.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID,
			ResourceVersion: &lease.ResourceVersion}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		tflog.Warn(ctx, "could not delete the lease of the release; it expires soon", map[string]any{"release": l.name, "because": err.Error()})
	}
}
