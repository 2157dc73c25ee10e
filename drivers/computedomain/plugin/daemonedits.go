package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/driverfiles"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/draplugin"
)

// Files of a domain's private directory on a node.
const (
	// persistName is the file or directory behind computedomain.PersistDir in the container.
	persistName = "persist"
	// bootName holds the ID of the boot in which persistName was last used. No daemon reads it.
	bootName = "boot"
	// resolverName is the file behind /etc/nsswitch.conf in the container. The image has none, and without it not every C library
	// reads /etc/hosts first: the default was "dns [!UNAVAIL=return] files", with which a peer's name is looked up in DNS and found
	// nowhere.
	resolverName = "nsswitch.conf"
	resolverText = "hosts: files dns\n"
)

// domainEdits give a daemon's container the domain's directory, and the files of its private one. The container can replace each
// file of the former, also by a link: the runtime would follow it on the node when it mounts one for the next container.
func (k *preparer) domainEdits(domain types.UID) (specs.ContainerEdits, error) {
	dir, private := k.domainDir(domain), k.privateDir(domain)
	persist := filepath.Join(private, persistName)
	if err := k.forgetEarlierBoot(private, persist); err != nil {
		return specs.ContainerEdits{}, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(persist, 0o755)); err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("make the domain's directory: %w", err)
	}
	var writer atomicfile.Writer
	resolver := filepath.Join(private, resolverName)
	if err := writer.Write(resolver, []byte(resolverText), 0o644); err != nil {
		return specs.ContainerEdits{}, err
	}
	return specs.ContainerEdits{Mounts: []*specs.Mount{
		{HostPath: dir, ContainerPath: computedomain.DaemonDir, Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
		{HostPath: persist, ContainerPath: computedomain.PersistDir, Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
		{HostPath: resolver, ContainerPath: "/etc/nsswitch.conf", Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}},
	}}, nil
}

// forgetEarlierBoot removes nvidia-imex's state from an earlier boot of the node. The real one keeps it on a tmpfs, which a boot
// empties: memory that others had mapped is gone with the boot, so there is no peer to wait for.
func (k *preparer) forgetEarlierBoot(dir, persist string) error {
	path, boot := filepath.Join(dir, bootName), k.bootID()
	if boot == "" {
		return errors.New("the node's boot ID (/proc/sys/kernel/random/boot_id) cannot be read, so the state that an IMEX daemon stored may " +
			"be of an earlier boot; it is read again when the claim is tried again")
	}
	last, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the boot ID of the last use of the domain's directory: %w", err)
	}
	if err == nil && strings.TrimSpace(string(last)) == boot {
		return nil
	}
	if err := os.RemoveAll(persist); err != nil {
		return fmt.Errorf("remove the state of an IMEX daemon from an earlier boot: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the domain's directory: %w", err)
	}
	var writer atomicfile.Writer
	return writer.Write(path, []byte(boot+"\n"), 0o644)
}

// driverEdits give a daemon's container the files of the driver that nvidia-imex needs: its files, nvidiactl, every GPU's node and the
// capability to manage the fabric (public PR #1222 of NVIDIA's DRA driver: "without access to all the GPUs, the IMEX daemon doesn't
// work properly"). problems are reported, and do not prevent the daemon.
func (k *preparer) driverEdits(clique string) (edits specs.ContainerEdits, problems []string, err error) {
	const reason = "NoIMEXDaemon"
	at := k.driver.Locate()
	if at.Library == "" {
		return edits, nil, draplugin.Refuse("DriverNotFound", "the node's GPUs are in NVLink clique %s, but the driver's files are in none of %s",
			clique, placesOf(k.driver))
	}
	files, err := driverfiles.Find(at.Root)
	if err != nil {
		return edits, nil, draplugin.Refuse(reason, "the node's GPUs are in NVLink clique %s, but no IMEX daemon can run there: %w", clique, err)
	}
	for _, file := range files.Files {
		edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: file.Host, ContainerPath: file.Container,
			Options: []string{"ro", "nosuid", "nodev", "bind"}})
	}
	edits.Env = append(edits.Env, computedomain.EnvProgram+"="+files.Daemon, computedomain.EnvControl+"="+files.Control)
	if files.Loader != "" {
		edits.Env = append(edits.Env, computedomain.EnvLoader+"="+files.Loader)
	}
	devices, err := k.daemonDevices()
	if err != nil {
		return edits, nil, draplugin.Refuse(reason, "the node's GPUs are in NVLink clique %s, but no IMEX daemon can run there: %w", clique, err)
	}
	edits.DeviceNodes = deviceNodes(devices)
	return edits, files.Problems, nil
}

func (k *preparer) daemonDevices() ([]imex.Device, error) {
	control, err := k.imex.Control()
	if err != nil {
		return nil, err
	}
	gpus, err := k.imex.GPUs()
	if err != nil {
		return nil, err
	}
	management, err := k.imex.Management()
	if err != nil {
		return nil, err
	}
	return append(append([]imex.Device{control}, gpus...), management), nil
}

// placesOf are the directories of the node in which a search looks.
func placesOf(search driver.Search) string {
	var places []string
	for _, root := range search.Roots {
		places = append(places, root.Host)
	}
	return strings.Join(places, ", ")
}
