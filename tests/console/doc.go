// Package console tests the page of the fabric in a real browser, with a real API server. It is a separate module, so that the
// libraries that drive the browser are no dependency of what ships.
package console
