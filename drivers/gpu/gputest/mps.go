package gputest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// control is a stand-in for nvidia-cuda-mps-control that needs only a shell. Its answers, and the files in its directory, are those
// of version 550.163.01 of the real program (Debian's package nvidia-cuda-mps, which runs without a GPU; the tests of package
// sharing run it where it is installed).
const control = `#!/bin/sh
dir="$CUDA_MPS_PIPE_DIRECTORY"
told="%[1]s"
if [ "$1" = -h ]; then
	echo "  -M,--multiuser-server    Enable multi-user mode" # of 580.159.04; 550.163.01 has no such line
	exit
fi
if [ "$1" = -f ]; then
	shift
	echo "start $CUDA_VISIBLE_DEVICES${1:+ $1}" >> "$told"
	%[2]s
	echo $$ > "$dir/nvidia-cuda-mps-control.pid"
	mkfifo "$dir/control"
	exec sleep 600
fi
read -r line
kill -0 "$(cat "$dir/nvidia-cuda-mps-control.pid")" 2>/dev/null || { echo "Cannot find MPS control daemon process"; exit 1; }
case "$line" in get_*) ;; *) echo "$line" >> "$told" ;; esac
case "$line" in
quit*) kill "$(cat "$dir/nvidia-cuda-mps-control.pid")" ;;
set_default_active_thread_percentage*) echo "${line##* }.0" | tee "$dir/percentage" ;;
get_default_active_thread_percentage) cat "$dir/percentage" ;;
set_default_device_pinned_mem_limit*) set -- $line; echo "$3" > "$dir/limit-$2" ;;
get_default_device_pinned_mem_limit*) cat "$dir/limit-${line##* }" ;;
esac
`

// MPSControl puts a stand-in for the driver's MPS control daemon below a driver root. The stand-in writes its arguments and
// commands to the file told, whose name may contain shell variables. Before it listens it runs the given shell commands.
func MPSControl(t testing.TB, driverRoot, log, before string) {
	t.Helper()
	program := filepath.Join(driverRoot, "usr/bin/nvidia-cuda-mps-control")
	if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, fmt.Appendf(nil, control, log, before), 0o600),
		os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
}
