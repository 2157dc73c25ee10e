package standin

import "gpufabric.io/build/images"

// nvbandwidth adds to Debian's Open MPI the other parts of the sample image with nvbandwidth: the user that pods run as, SSH on
// a port that this user may open, and a program of that name. mpirun, sshd and ssh are the real ones.
func nvbandwidth() []images.File {
	text := func(path, content string) images.File {
		return images.File{Path: path, Content: []byte(content), Mode: 0o644}
	}
	program := func(path, content string) images.File { return images.File{Path: path, Content: []byte(content)} }
	return []images.File{
		text("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"+
			"mpiuser:x:1000:1000::/home/mpiuser:/bin/bash\n"),
		text("/etc/group", "root:x:0:\nnogroup:x:65534:\nmpiuser:x:1000:\n"),
		// The key is the job's, mounted from a Secret whose files belong to root.
		text("/home/mpiuser/.sshd_config", "Port 2222\nPidFile none\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\n"),
		text("/etc/ssh/ssh_config", "Host *\n    Port 2222\n    StrictHostKeyChecking no\n"+
			"    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n"),
		program("/usr/local/bin/mpirun", overload),
		program("/usr/local/bin/nvbandwidth", probe),
	}
}

// overload is mpirun on a machine with fewer cores than a GB200 has: where a job binds each of its ranks to a core, several share one.
const overload = `#!/bin/bash
arguments=()
for argument in "$@"; do
	if [ "$previous" = --bind-to ] && [ "$argument" = core ]; then argument=core:overload-allowed; fi
	arguments+=("$argument")
	previous=$argument
done
exec /usr/bin/mpirun "${arguments[@]}"
`

// probe replaces nvbandwidth, which needs a GPU: each rank opens what the real one would, the GPU of its number on the node and the
// IMEX channel, and reports that. It measures nothing.
const probe = `#!/bin/bash
shopt -s nullglob
gpus=(/dev/nvidia[0-9] /dev/nvidia[0-9][0-9])
gpu=${gpus[$OMPI_COMM_WORLD_LOCAL_RANK]}
channel=/dev/nvidia-caps-imex-channels/channel0
if [ -z "$gpu" ]; then
	echo "rank $OMPI_COMM_WORLD_RANK: $(hostname) has ${#gpus[@]} GPUs, none for local rank $OMPI_COMM_WORLD_LOCAL_RANK" >&2
	exit 1
fi
if [ ! -r "$channel" ] || [ ! -w "$channel" ]; then
	echo "rank $OMPI_COMM_WORLD_RANK: $(hostname) has no IMEX channel $channel that may be opened" >&2
	exit 1
fi
echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname): $gpu, $channel; would run nvbandwidth $*"
`
