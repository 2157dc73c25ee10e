// Package pages holds the repository's Markdown pages to what they name: links, anchors, paths, tests and make targets.
package pages
