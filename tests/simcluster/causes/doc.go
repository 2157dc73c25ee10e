// Package causes injects causes of waiting into a simulated cluster with gpufabric, one after the other, and runs gpufabric
// doctor each time. Its suite has the build tag causes. `make test-causes` runs it, which takes about half an hour.
package causes
