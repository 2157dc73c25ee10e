// Command probe is the only program of the image that the tests of container runtimes run. `probe wait` runs until it gets a signal; else
// it prints, a line each, its environment, its mounts, and for each path of its arguments the device's number and the result of opening it.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "wait" {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
		<-ended
		return
	}
	for _, variable := range os.Environ() {
		fmt.Println("env", variable)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(string(mounts))
	for _, path := range os.Args[1:] {
		fmt.Println("device", path, look(path))
	}
}

// look returns the type and the number of a device node, and the error of opening it: ENXIO where the container may open it and no driver
// serves the number, EPERM where the cgroup does not let it.
func look(path string) string {
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		return err.Error()
	}
	text := "no character device"
	if s.Mode&syscall.S_IFMT == syscall.S_IFCHR {
		// The number's parts, as in glibc's sys/sysmacros.h.
		text = fmt.Sprintf("%d:%d", s.Rdev>>8&0xfff, s.Rdev&0xff|s.Rdev>>12&0xfff00)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	var number syscall.Errno
	switch {
	case errors.As(err, &number):
		return text + " " + number.Error()
	case err != nil:
		return text + " " + err.Error()
	}
	if err := file.Close(); err != nil {
		return err.Error()
	}
	return text + " opened"
}
