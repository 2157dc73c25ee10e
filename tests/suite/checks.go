package suite

import (
	"fmt"
	"syscall"
)

// leastFree is free disk below which the builds and the clusters fail in ways that do not name the disk.
const leastFree = 2 << 30

// Free reports the first directory whose filesystem has less than 2 GiB left.
func Free(directories ...string) error { return free(leastFree, available, directories...) }

func free(least uint64, available func(string) (uint64, error), directories ...string) error {
	for _, directory := range directories {
		bytes, err := available(directory)
		if err != nil {
			return fmt.Errorf("read the free space of %s: %w", directory, err)
		}
		if bytes < least {
			return fmt.Errorf("the filesystem of %s has %.1f GiB left, and a part needs %.0f: free some, such as by `go clean -cache` or "+
				"`docker system prune`", directory, float64(bytes)/(1<<30), float64(least)/(1<<30))
		}
	}
	return nil
}

// available is the free space, in bytes, for a user without privilege.
func available(directory string) (uint64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(directory, &fs); err != nil {
		return 0, err
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// remedy is how a program comes onto the PATH.
func remedy(program string) string {
	packages := map[string]string{"docker": "docker.io", "mmdebstrap": "mmdebstrap", "make": "make", "gcc": "gcc libc6-dev", "git": "git",
		"aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"}
	if name := packages[program]; name != "" {
		return "on Debian: apt-get install " + name
	}
	return "install it"
}
