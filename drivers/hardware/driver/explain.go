package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// What is wrong with a driver, in a word.
const (
	// NotFound: no driver's files are there.
	NotFound = "DriverNotFound"
	// NotLoaded: the files are there, and no kernel module is loaded.
	NotLoaded = "DriverNotLoaded"
	// VersionsDiffer: the files are of another version than the kernel's modules.
	VersionsDiffer = "DriverVersionsDiffer"
)

// Explain says in words why no driver is found, or what is wrong with the one that is: nothing where nothing is.
func (s Search) Explain() string {
	_, message := s.Trouble()
	return message
}

// Trouble is Explain with a word before its words.
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
		message += fmt.Sprintf("; the kernel has modules of version %s, so the files are elsewhere (say where by --driver-root) or were removed",
			loaded)
	}
	return NotFound, message
}

// lack says why a root has no driver.
func (p Place) lack() string {
	info, err := os.Stat(p.Path)
	switch {
	case err == nil && !info.IsDir():
		return p.Path + " is no directory"
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
