// Package upgrade tests an upgrade from an earlier commit and a rollback to it, under pods with claims of every form, compute domains,
// pools and shares, on simulated clusters whose containers are processes of both versions. `make upgrade FROM=COMMIT` builds the earlier
// version and runs it.
package upgrade
