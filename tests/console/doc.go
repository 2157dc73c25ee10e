// Package console tests the page of the fabric in a real browser, before a real API server. It is a module of its own: what drives the
// browser weighs on nothing that ships.
package console
