// Package pages checks that all exists that the repository's Markdown pages name: links, anchors, paths, tests and make
// targets.
package pages
