// Package conformance shows fake nodes to programs that know nothing of fakes: Debian's lspci, ibstat, ibstatus, ibv_devices, ibv_devinfo
// and lstopo. A test whose program is not installed is skipped and names the package to install.
package conformance
