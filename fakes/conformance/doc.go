// Package conformance runs independent programs on fake nodes: Debian's lspci, ibstat, ibstatus, ibv_devices,
// ibv_devinfo and lstopo. A test whose program is not installed is skipped and names the package to install.
package conformance
