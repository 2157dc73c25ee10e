// Package console tests the page of the fabric in a real browser, with a real API server. It is a separate module, so that the
// programs that ship do not depend on the libraries that drive the browser.
package console
