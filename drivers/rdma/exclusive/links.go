package exclusive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Links are the kernel's links, as far as they move. A link that is where it shall be already is no error, so that every move can be repeated.
// A namespace is the path of its file (/var/run/netns/cni-...); one that has ended has given back what it had.
type Links interface {
	// Exclusive says whether the RDMA subsystem is in exclusive mode.
	Exclusive() (bool, error)
	GiveRDMA(device, namespace string) error
	TakeRDMA(device, namespace string) error
	GiveInterface(name, namespace string) error
	TakeInterface(name, namespace string) error
}

// Netlink moves links of the running kernel. It needs CAP_NET_ADMIN here and in the namespaces, and CAP_SYS_ADMIN to look into them.
type Netlink struct{}

var _ Links = Netlink{}

// Exclusive implements Links.
func (Netlink) Exclusive() (bool, error) {
	mode, err := netlink.RdmaSystemGetNetnsMode()
	if err != nil {
		return false, fmt.Errorf("ask the kernel for the network-namespace mode of RDMA (is the module ib_core loaded?): %w", err)
	}
	return mode == "exclusive", nil
}

// kind is how one kind of link is looked up and moved.
type kind struct {
	what string
	// present says whether a handle's namespace has the link.
	present func(h *netlink.Handle, name string) (bool, error)
	move    func(h *netlink.Handle, name string, target int) error
}

func interfaces() kind {
	return kind{
		what: "network interface",
		present: func(h *netlink.Handle, name string) (bool, error) {
			_, err := h.LinkByName(name)
			var missing netlink.LinkNotFoundError
			if errors.As(err, &missing) {
				return false, nil
			}
			return err == nil, err
		},
		move: func(h *netlink.Handle, name string, target int) error {
			link, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			return h.LinkSetNsFd(link, target)
		},
	}
}

func rdmaDevices() kind {
	find := func(h *netlink.Handle, name string) (*netlink.RdmaLink, error) {
		links, err := h.RdmaLinkList()
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			if link.Attrs.Name == name {
				return link, nil
			}
		}
		return nil, nil
	}
	return kind{
		what: "RDMA device",
		present: func(h *netlink.Handle, name string) (bool, error) {
			link, err := find(h, name)
			return link != nil, err
		},
		move: func(h *netlink.Handle, name string, target int) error {
			link, err := find(h, name)
			if err != nil {
				return err
			}
			if link == nil {
				return fmt.Errorf("%s went while it was moved", name)
			}
			return h.RdmaLinkSetNsFd(link, uint32(target))
		},
	}
}

// GiveRDMA implements Links.
func (Netlink) GiveRDMA(device, namespace string) error {
	return give(rdmaDevices(), device, namespace)
}

// GiveInterface implements Links.
func (Netlink) GiveInterface(name, namespace string) error {
	return give(interfaces(), name, namespace)
}

// TakeRDMA implements Links.
func (Netlink) TakeRDMA(device, namespace string) error {
	return take(rdmaDevices(), device, namespace)
}

// TakeInterface implements Links.
func (Netlink) TakeInterface(name, namespace string) error {
	return take(interfaces(), name, namespace)
}

func give(k kind, name, namespace string) error {
	return between(namespace, func(here, there *netlink.Handle, _, target netns.NsHandle) error {
		if present, err := k.present(here, name); err != nil {
			return fmt.Errorf("look for the %s %s: %w", k.what, name, err)
		} else if present {
			if err := k.move(here, name, int(target)); err != nil {
				return fmt.Errorf("move the %s %s to %s: %w", k.what, name, namespace, err)
			}
			return nil
		}
		// It is there after a move that a crash cut short, or because it follows its RDMA device by itself, as IPoIB's interfaces do.
		if present, err := k.present(there, name); err != nil || !present {
			return errors.Join(fmt.Errorf("the %s %s is neither on the node nor in %s", k.what, name, namespace), err)
		}
		return nil
	})
}

func take(k kind, name, namespace string) error {
	err := between(namespace, func(_, there *netlink.Handle, home, _ netns.NsHandle) error {
		present, err := k.present(there, name)
		if err != nil {
			return fmt.Errorf("look for the %s %s in %s: %w", k.what, name, namespace, err)
		}
		if !present {
			return nil // It is back already.
		}
		if err := k.move(there, name, int(home)); err != nil {
			return fmt.Errorf("take the %s %s back from %s: %w", k.what, name, namespace, err)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoNamespace) {
		return nil // The namespace has ended and given back what it had.
	}
	return err
}

// errNoNamespace is for a file that was a namespace's and is a plain one now: what stays of it when the namespace has been unmounted.
var errNoNamespace = errors.New("no network namespace")

// between calls do with a handle in this process's namespace and one in that of path, and with both namespaces.
func between(path string, do func(here, there *netlink.Handle, home, target netns.NsHandle) error) error {
	home, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open this process's network namespace: %w", err)
	}
	defer home.Close() //nolint:errcheck // read only
	target, err := open(path)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // read only
	here, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer here.Close()
	there, err := netlink.NewHandleAt(target)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer there.Close()
	return do(here, there, home, target)
}

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
