"""Stands in for the training of a Wide & Deep model on eight GPUs, which the published image of this path does. It trains nothing: it opens all that
the real one would open, and says what that was in one line of JSON. What a pod lacks, or was given without having asked, ends it with exit code 1.

No driver stands behind fake hardware, so the kernel may answer an open with ENXIO, or ENODEV for rdma_cm. It does so after the device cgroup has let the
container through: what that forbids is EPERM, and what is not there ENOENT.

An argument is where dev and sys are; none: the root.
"""

import errno
import json
import os
import pathlib
import re
import subprocess
import sys

WANTED_GPUS = 8


class Wrong(Exception):
    """The pod was not given what it asked for."""


def opened(paths):
    """Opens each device node for reading and writing."""
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENODEV):
                raise Wrong(f"open {path}: {error.strerror}") from error
    return [path.name for path in paths]


def numbered(directory, pattern):
    """The directory's entries that match, by their number."""
    names = os.listdir(directory) if directory.is_dir() else []
    found = [match for match in (re.fullmatch(pattern + r"(\d+)", name) for name in names) if match]
    return [directory / match.group(0) for match in sorted(found, key=lambda match: int(match.group(1)))]


def gpus(dev):
    """Opens every GPU, and the nodes by which a driver's libraries reach it."""
    nodes = numbered(dev, "nvidia")
    if len(nodes) != WANTED_GPUS:
        raise Wrong(f"{len(nodes)} GPUs in {dev} ({', '.join(node.name for node in nodes)}), want {WANTED_GPUS}")
    opened([dev / "nvidiactl", dev / "nvidia-uvm"])
    return opened(nodes)


def uuids():
    """The GPUs that the driver answers for."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Wrong(f"{' '.join(command)}: {error.strerror}") from error
    found = answer.stdout.split()
    if answer.returncode != 0 or len(set(found)) != WANTED_GPUS:
        said = (answer.stdout + answer.stderr).strip()
        raise Wrong(f"{' '.join(command)} ends with {answer.returncode}, want {WANTED_GPUS} GPUs: {said}")
    return found


def hca(dev, sysfs):
    """Opens the nodes of the one HCA, and finds no other HCA's beside them."""
    directory = dev / "infiniband"
    verbs = numbered(directory, "uverbs")
    if len(verbs) != 1:
        raise Wrong(f"{len(verbs)} HCAs in {directory} ({', '.join(node.name for node in verbs)}), want 1")
    name = (sysfs / "class/infiniband_verbs" / verbs[0].name / "ibdev").read_text().strip()
    for node in numbered(directory, "umad") + numbered(directory, "issm"):
        owner = (sysfs / "class/infiniband_mad" / node.name / "ibdev").read_text().strip()
        if owner != name:
            raise Wrong(f"{node} is a node of {owner}, and the pod's HCA is {name}")
    told = os.environ.get("NCCL_IB_HCA", "")
    if told and re.split("[:,]", told.lstrip("="))[0] != name:
        raise Wrong(f"NCCL_IB_HCA is {told}, and the pod's HCA is {name}")
    if not (directory / "rdma_cm").exists():
        raise Wrong(f"no rdma_cm in {directory}: no connection can be made")
    return name, opened(sorted(directory.iterdir()))


def main(root):
    """Looks at everything and says what it saw."""
    dev, sysfs = root / "dev", root / "sys"
    seen = {"host": os.uname().nodename, "gpus": gpus(dev), "uuids": uuids()}
    seen["hca"], seen["infiniband"] = hca(dev, sysfs)
    memory = os.statvfs(dev / "shm")
    seen["shmMiB"] = memory.f_blocks * memory.f_frsize >> 20
    print(json.dumps(seen))


if __name__ == "__main__":
    try:
        main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "/"))
    except (Wrong, OSError) as wrong:
        sys.exit(f"wdl_8gpu_outbrain: {wrong}")
