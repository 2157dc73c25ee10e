// Command registry is the registry of a kind cluster: it keeps blobs in a directory and manifests in memory, and lets anybody on the
// cluster's network push and pull. It runs as the only program of its container.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// The connection of a client that has not sent its request's header in this time is closed.
const headerPatience = 10 * time.Second

func main() {
	address := flag.String("address", ":5000", "where to listen")
	data := flag.String("data", "/data", "directory for blobs")
	flag.Parse()
	if err := os.MkdirAll(*data, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
	server := &http.Server{
		Addr:              *address,
		ReadHeaderTimeout: headerPatience,
		Handler: registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(*data)),
			registry.Logger(log.New(io.Discard, "", 0))),
	}
	fmt.Fprintln(os.Stderr, "registry:", server.ListenAndServe())
	os.Exit(1)
}
