package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/node/atomicfile"
)

// The ways to limit the containers of shares.
const (
	limitsAuto    = "auto"
	limitsLibrary = "library"
	limitsNone    = "none"
)

// limits installs the library for the limits of shares on the node, where it is wanted and available.
func (o *Options) limits(writer atomicfile.Writer) (claims.Limits, error) {
	l := claims.Limits{Files: filepath.Join(o.StateDir, "limits"), Writer: writer,
		Accounts: filepath.Join(o.StateDir, "accounts"), Bytes: o.LimiterBytes, Closed: o.LimiterClosed}
	if o.LimiterBytes > 0 {
		l.Seats = &cores.Seats{Directory: filepath.Join(o.StateDir, "cores"), Lend: o.LendCores, Bounded: true}
	}
	if o.Limits == limitsNone {
		return l, nil
	}
	if _, err := os.Stat(o.LimiterLibrary); errors.Is(err, fs.ErrNotExist) && o.Limits == limitsAuto {
		return l, nil // not our image: a program that was built and started by hand
	}
	directory := filepath.Join(o.StateDir, "lib")
	if err := limiter.Install(o.LimiterLibrary, directory, writer); err != nil {
		return claims.Limits{}, err
	}
	l.Library = directory
	return l, nil
}
