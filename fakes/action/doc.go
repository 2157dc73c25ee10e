// Package action has no code: it is the GitHub Action that makes a kind cluster of nodes with fake hardware, as a script, and its test.
package action
