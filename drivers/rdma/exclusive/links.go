package exclusive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Links are the kernel's links that can be moved. A link that is already in the right place is no error, so that every move can be
// repeated. A namespace is given by the path of its file (/var/run/netns/cni-...); one that has ended has returned its links.
type Links interface {
	// Exclusive reports whether the RDMA subsystem is in exclusive mode.
	Exclusive() (bool, error)
	// Look reads the settings of an interface of the node before a move: a move removes its addresses and routes, and sets it down.
	Look(name string) (Interface, error)
	GiveRDMA(device, namespace string) error
	TakeRDMA(device, namespace string) error
	// GiveInterface moves an interface to a pod and restores its settings there. It returns descriptions of addresses and routes that
	// the pod cannot have; the pod works with the rest.
	GiveInterface(i Interface, namespace string) (missing []string, err error)
	// TakeInterface moves an interface back and restores its settings. It returns the addresses and routes that the node can no longer
	// have.
	TakeInterface(i Interface, namespace string) (missing []string, err error)
	// Await waits, for a bounded time, until a namespace that has ended has returned these interfaces. It does not wait for a living
	// one.
	Await(ctx context.Context, namespace string, interfaces []Interface)
}

// Netlink moves links of the running kernel. It needs CAP_NET_ADMIN here and in the namespaces, and CAP_SYS_ADMIN to enter them.
type Netlink struct {
	Sysfs string // /sys: it distinguishes a removed function from one whose interface is not back yet
}

var _ Links = Netlink{}

// back is how long a namespace that has ended may take to return its links. The kernel does that in the background, and reports it
// through rtnetlink. A container runtime waits 2 s for an answer (plugin_request_timeout of containerd's NRI).
const back = time.Second

// Exclusive implements Links.
func (Netlink) Exclusive() (bool, error) {
	mode, err := netlink.RdmaSystemGetNetnsMode()
	if err != nil {
		return false, fmt.Errorf("read the network-namespace mode of RDMA from the kernel (is the module ib_core loaded?): %w", err)
	}
	return mode == "exclusive", nil
}

// GiveRDMA implements Links.
func (Netlink) GiveRDMA(device, namespace string) error {
	target, err := open(namespace)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // read only
	link, err := rdmaLink(device)
	if err != nil {
		return err
	}
	if link != nil {
		if err := netlink.RdmaLinkSetNsFd(link, uint32(target)); err != nil {
			return fmt.Errorf("move the RDMA device %s to %s: %w", device, namespace, explained(err))
		}
		return nil
	}
	return within(target, func() error { // It is there after a move that a crash interrupted.
		if link, err := rdmaLink(device); err != nil || link == nil {
			return errors.Join(fmt.Errorf("the RDMA device %s is not on the node and not in %s", device, namespace), err)
		}
		return nil
	})
}

// explained adds the meaning of the kernel's error for a move.
func explained(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: the kernel does not move a device whose driver cannot take it from programs that have it open (such as "+
			"rdma_rxe and siw)", err)
	}
	return err
}

// TakeRDMA implements Links. The kernel moves a device only out of the caller's namespace, so the caller enters the pod's.
func (Netlink) TakeRDMA(device, namespace string) error {
	home, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open this process's network namespace: %w", err)
	}
	defer home.Close() //nolint:errcheck // read only
	target, err := open(namespace)
	if ended(err) {
		// An RDMA device has no settings, so there is no need to wait for it.
		return nil
	}
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // read only
	return within(target, func() error {
		link, err := rdmaLink(device)
		if err != nil || link == nil {
			return err // None: it is back already.
		}
		if err := netlink.RdmaLinkSetNsFd(link, uint32(home)); err != nil {
			return fmt.Errorf("take the RDMA device %s back from %s: %w", device, namespace, err)
		}
		return nil
	})
}

// rdmaLink finds an RDMA device in this thread's network namespace; nil: it does not exist.
func rdmaLink(device string) (*netlink.RdmaLink, error) {
	links, err := netlink.RdmaLinkList()
	if err != nil {
		return nil, fmt.Errorf("look for the RDMA device %s: %w", device, err)
	}
	for _, link := range links {
		if link.Attrs.Name == device {
			return link, nil
		}
	}
	return nil, nil
}

// GiveInterface implements Links.
func (Netlink) GiveInterface(i Interface, namespace string) ([]string, error) {
	target, err := open(namespace)
	if err != nil {
		return nil, err
	}
	defer target.Close() //nolint:errcheck // read only
	var there []netlink.Link
	if err := within(target, func() (err error) { there, err = netlink.LinkList(); return err }); err != nil {
		return nil, fmt.Errorf("list the interfaces in %s: %w", namespace, err)
	}
	if link := i.in(there); link != nil {
		// A plugin that restarts finds its devices. The pod may have changed its settings, unless a crash left it as a move leaves it.
		if link.Attrs().Flags&unix.IFF_UP != 0 || !i.Up {
			return nil, nil
		}
	} else if err := i.move(there, target); err != nil {
		return nil, fmt.Errorf("move the network interface %s to %s: %w", i.Name, namespace, err)
	}
	var missing []string
	err = within(target, func() (err error) {
		missing, err = i.setUp("the pod", i.inPod())
		return err
	})
	return missing, err
}

// TakeInterface implements Links.
func (n Netlink) TakeInterface(i Interface, namespace string) ([]string, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open this process's network namespace: %w", err)
	}
	defer home.Close() //nolint:errcheck // read only
	here, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the node's interfaces: %w", err)
	}
	target, err := open(namespace)
	switch {
	case ended(err):
		if !n.home(&i, here) {
			return nil, fmt.Errorf("the network interface %s of %s is not back on the node %v after its pod's network namespace ended: its "+
				"settings wait for it",
				i.Name, i.Parent, back)
		}
	case err != nil:
		return nil, err
	default:
		defer target.Close() //nolint:errcheck // read only
		err = within(target, func() error {
			there, err := netlink.LinkList()
			if err != nil || i.in(there) == nil {
				return err // None: it is already back, or the pod removed it.
			}
			return i.move(here, home)
		})
		if err != nil {
			return nil, fmt.Errorf("take the network interface %s back from %s: %w", i.Name, namespace, err)
		}
	}
	return i.setUp("the node", i.Routes)
}

// Await implements Links. Each link that returns to the node causes an rtnetlink event.
func (n Netlink) Await(ctx context.Context, namespace string, interfaces []Interface) {
	if target, err := open(namespace); !ended(err) {
		if err == nil {
			_ = target.Close()
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, back)
	defer cancel()
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		klog.FromContext(ctx).Error(err, "rtnetlink does not report returning interfaces; looking for them once")
		close(done)
		return
	}
	// The library's goroutine ends at the next event after done, and must not wait for a reader until then.
	defer func() {
		close(done)
		go func() {
			for range updates { // Drained, so that the sender can end.
			}
		}()
	}()
	for {
		here, err := netlink.LinkList()
		if err == nil && !slices.ContainsFunc(interfaces, func(i Interface) bool { return !n.home(&i, here) }) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case _, more := <-updates:
			if !more {
				return
			}
		}
	}
}

// home reports whether an interface is back on the node, or will not come back: its hardware is gone, or only its name was known.
func (n Netlink) home(i *Interface, here []netlink.Link) bool {
	if i.in(here) != nil || i.Parent == "" {
		return true
	}
	for _, bus := range []string{"pci", "auxiliary"} { // a scalable function is mlx5_core.sf.2 on the second
		if _, err := os.Stat(filepath.Join(n.Sysfs, "bus", bus, "devices", i.Parent)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return n.Sysfs != ""
}

// within runs do in a thread of the network namespace target.
func within(target netns.NsHandle, do func() error) error {
	failed := make(chan error, 1)
	go func() { // Ends with do.
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			failed <- fmt.Errorf("open this process's network namespace: %w", err)
			return
		}
		defer home.Close() //nolint:errcheck // read only
		if err := netns.Set(target); err != nil {
			failed <- fmt.Errorf("enter the pod's network namespace: %w", err)
			return
		}
		failed <- do()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		} // Otherwise the thread, which is in the wrong namespace, ends with the goroutine.
	}()
	return <-failed
}

// errNoNamespace is for a plain file that was a namespace's: it remains after the namespace was unmounted.
var errNoNamespace = errors.New("no network namespace")

// ended reports whether open failed because the namespace has ended.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoNamespace) }

func open(path string) (netns.NsHandle, error) {
	var at unix.Statfs_t
	if err := unix.Statfs(path, &at); err != nil {
		return netns.None(), fmt.Errorf("open the pod's network namespace: %w", &os.PathError{Op: "statfs", Path: path, Err: err})
	}
	if at.Type != unix.NSFS_MAGIC && at.Type != unix.PROC_SUPER_MAGIC {
		return netns.None(), fmt.Errorf("%s: %w", path, errNoNamespace)
	}
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return netns.None(), fmt.Errorf("open the pod's network namespace %s: %w", path, err)
	}
	return handle, nil
}
