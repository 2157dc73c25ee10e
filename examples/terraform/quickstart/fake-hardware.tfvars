# For clusters whose nodes carry the chart fake-hardware, such as this repository's kind cluster.
hardware = {
  driver_root  = "/var/lib/fakefabric/driver"
  sysfs_root   = "/var/lib/fakefabric/sys"
  dev_root     = "/var/lib/fakefabric/dev"
  proc_devices = "/var/lib/fakefabric/proc/devices"
  host_mounts  = ["/var/lib/fakefabric"]
  privileged   = false
}
