package rdmakernel

import (
	"bufio"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modules are the kernel modules that the guest may load, without their dependencies. rdma_rxe takes its checksums from crc32_generic, and
// reports ENOENT without it. There is no module of xfrm or of netfilter: a node need not have them.
func modules() []string {
	return []string{"crc32_generic", "e1000e", "igb", "igbvf", "ib_uverbs", "ib_umad", "rdma_ucm", "rdma_rxe", "ib_ipoib", "macvlan", "dummy",
		"veth", "bonding"}
}

// entry is a file of the guest's first file system.
type entry struct {
	name    string // without a slash in front
	mode    uint32
	content []byte
}

const (
	directory  = 0o040755
	executable = 0o100755
	plain      = 0o100644
)

// initramfs writes the guest's file system: init, the kernel modules with their dependencies, and the order to load them in.
func (d debian) initramfs(path, init, module string) error {
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	testhca, err := os.ReadFile(module)
	if err != nil {
		return err
	}
	var entries []entry
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "modules"} {
		entries = append(entries, entry{name: dir, mode: directory})
	}
	entries = append(entries, entry{"init", executable, program})
	files, err := d.modules()
	if err != nil {
		return err
	}
	var order []string
	var add func(string) error
	add = func(name string) error {
		file := files[name]
		if file == "" {
			return fmt.Errorf("the kernel %s has no module %s", d.kernel, name)
		}
		if slices.Contains(order, name+".ko") {
			return nil
		}
		needed, err := needs(file)
		if err != nil {
			return err
		}
		for _, other := range needed {
			if err := add(other); err != nil {
				return err
			}
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		order = append(order, name+".ko")
		entries = append(entries, entry{"modules/" + name + ".ko", plain, content})
		return nil
	}
	for _, name := range modules() {
		if err := add(name); err != nil {
			return err
		}
	}
	order = append(order, "testhca.ko")
	entries = append(entries, entry{"modules/testhca.ko", plain, testhca},
		entry{"modules/order", plain, []byte(strings.Join(order, "\n") + "\n")})
	return writeArchive(path, entries)
}

// modules finds the files of the kernel's modules, by name.
func (d debian) modules() (map[string]string, error) {
	files := make(map[string]string)
	root := d.path("lib/modules", d.kernel, "kernel")
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if name, found := strings.CutSuffix(filepath.Base(path), ".ko"); found {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	return files, err
}

// needs reads the modules that the one in file depends on, from its section .modinfo.
func needs(file string) ([]string, error) {
	module, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer module.Close() //nolint:errcheck // read only
	section := module.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s is not a kernel module: it has no section .modinfo", file)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, found := strings.CutPrefix(field, "depends="); found && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// writeArchive writes a compressed cpio archive in the format that the kernel unpacks ("newc").
func writeArchive(path string, entries []entry) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	buffered := bufio.NewWriter(file)
	compressed, err := gzip.NewWriterLevel(buffered, gzip.BestSpeed)
	if err != nil {
		return err
	}
	for i, e := range append(entries, entry{name: "TRAILER!!!"}) {
		if err := e.write(compressed, i+1); err != nil {
			return err
		}
	}
	return errors.Join(compressed.Close(), buffered.Flush())
}

// write writes the entry: a header of thirteen hexadecimal numbers, the name and the content, each padded to a multiple of four bytes.
func (e entry) write(w io.Writer, inode int) error {
	header := "070701"
	for _, number := range []int{inode, int(e.mode), 0, 0, 1, 0, len(e.content), 0, 0, 0, 0, len(e.name) + 1, 0} {
		header += fmt.Sprintf("%08x", number)
	}
	text := header + e.name + "\x00"
	text += strings.Repeat("\x00", -len(text)&3)
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if _, err := w.Write(e.content); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, -len(e.content)&3))
	return err
}
