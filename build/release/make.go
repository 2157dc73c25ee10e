package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Order describes a release to make.
type Order struct {
	Root    string // the checkout
	Version string
	Keys    string // a directory, or none
	Out     string // gets a directory named by the version
}

// Make makes a release of the commit that is checked out. Its directory appears when all of it is there; one of an earlier run is replaced.
func Make(ctx context.Context, order Order, progress func(string), said io.Writer) error {
	if err := CheckVersion(order.Version); err != nil {
		return err
	}
	var keys *Keys
	switch order.Keys {
	case "":
		return errors.New("no KEYS: name the directory of the release's keys (`make release-keys KEYS=DIRECTORY` makes new ones), " +
			"or KEYS=none for files that nobody can verify")
	case "none":
	default:
		var err error
		if keys, err = ReadKeys(order.Keys); err != nil {
			return err
		}
	}
	commit, err := Head(ctx, order.Root, order.Version)
	if err != nil {
		return err
	}
	tools, err := Tools(ctx)
	if err != nil {
		return err
	}
	out, err := filepath.Abs(order.Out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(out, ".making-"+order.Version+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	source, made := filepath.Join(work, "source"), filepath.Join(work, "made")
	if err := errors.Join(os.Mkdir(source, 0o755), os.Mkdir(made, 0o755)); err != nil {
		return err
	}
	progress(fmt.Sprintf("commit %s, version %s", commit.Hash, order.Version))
	if err := Export(ctx, order.Root, commit, source); err != nil {
		return err
	}
	if err := SetVersion(source, order.Version); err != nil {
		return err
	}
	texts, err := FindTexts(ctx, source)
	if err != nil {
		return err
	}
	lock, err := ReadLock(source)
	if err != nil {
		return err
	}
	progress("compile")
	if err := Compile(ctx, source, order.Version, ProviderPlatforms(), said); err != nil {
		return err
	}
	r := &Release{Version: order.Version, Commit: commit, Root: source, Out: made, Keys: keys, Texts: texts, Lock: lock,
		Architectures: []string{"amd64", "arm64"}, Platforms: ProviderPlatforms(), Tools: tools}
	if err := r.Assemble(ctx, progress); err != nil {
		return err
	}
	final := filepath.Join(out, order.Version)
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	if err := os.Rename(made, final); err != nil {
		return err
	}
	progress("made " + final)
	return nil
}
