// Command gpufabric-firstday asks a machine with a GPU, and no cluster, whether what this project takes for granted is so there: it runs
// one step after another, prints for each whether it is ok, failed or not permitted, and puts back what it changed. See make firstday.
//
// Each step is a file of its own and knows nothing of the others. A step that changes something puts it back before it ends, also when it
// is interrupted.
package main
