// Package causes puts causes of waiting into a simulated cluster that runs gpufabric, one after the other, and asks gpufabric doctor each
// time. Its suite has the build tag causes: `make test-causes` runs it, which takes some twenty minutes.
package causes
