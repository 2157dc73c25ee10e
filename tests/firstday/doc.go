// Command gpufabric-firstday checks on a machine with a GPU, and without a cluster, whether this project's assumptions are right.
// It runs one step after another, prints for each whether it is ok, failed or not permitted, and restores what it changed. See make
// firstday.
//
// Each step is in its own file and independent of the others. A step that changes something restores it before it ends, also when
// it is interrupted.
package main
