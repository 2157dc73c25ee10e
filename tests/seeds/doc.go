// Package seeds guards the manifests under examples/manifests: they are the project's first acceptance tests and must run word
// for word, so not one byte of them may change.
package seeds
