package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The reasons why a driver cannot be used.
const (
	// NotFound: there are no driver files.
	NotFound = "DriverNotFound"
	// NotLoaded: the files exist, but no kernel module is loaded.
	NotLoaded = "DriverNotLoaded"
	// VersionsDiffer: the files and the kernel's modules have different versions.
	VersionsDiffer = "DriverVersionsDiffer"
)

// Explain reports why a driver was not found, or the fault of the one that was found. It is empty where nothing is wrong.
func (s Search) Explain() string {
	_, message := s.Trouble()
	return message
}

// Trouble is like Explain, and also returns the reason.
func (s Search) Trouble() (reason, message string) {
	loaded := s.Loaded()
	at := s.Locate()
	if at.Library != "" {
		if version := libraryVersion(at.Library); loaded != "" && version != "" && version != loaded {
			return VersionsDiffer, fmt.Sprintf("the driver is of two versions: %s is of %s, and the kernel's modules are of %s (%s): reboot the "+
				"node, or unload the modules (nothing may have a GPU open: "+
				"gpufabric drain) and load those of %s", at.Library, version, loaded, filepath.Join(s.ProcRoot, "driver/nvidia/version"), version)
		}
		if loaded == "" {
			return NotLoaded, fmt.Sprintf("the driver's files are there (%s), and no kernel module is loaded (there is no %s): modprobe nvidia "+
				"on the node, or wait for the driver container",
				at.Library, filepath.Join(s.ProcRoot, "driver/nvidia/version"))
		}
		return "", ""
	}
	var lacks []string
	for _, root := range s.Roots {
		lacks = append(lacks, root.lack())
	}
	message = "no driver's files: " + strings.Join(lacks, "; ")
	if loaded != "" {
		message += fmt.Sprintf("; the kernel has modules of version %s, so the files are elsewhere (set "+
			"the chart's platform to the kind of the nodes, or hardware.driverRoot to the directory of the node) or were removed",
			loaded)
	}
	return NotFound, message
}

// lack returns the missing files of a root without a driver.
func (p Place) lack() string {
	info, err := os.Stat(p.Path)
	switch {
	case err == nil && !info.IsDir():
		return p.Path + " is not a directory"
	case err == nil:
		return fmt.Sprintf("%s has no %s in %s", p.Path, Library, strings.Join(LibraryDirs(), ", "))
	}
	if target, failed := os.Readlink(p.Path); failed == nil {
		return fmt.Sprintf("%s is a link to %s, which is not there", p.Path, target)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return p.Path + " is not there"
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 {
		return fmt.Sprintf("%v, though this is root: see in the node's kernel log (journalctl -k) what AppArmor or SELinux refused", err)
	}
	return err.Error()
}
