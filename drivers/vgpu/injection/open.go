package injection

import (
	"fmt"
	"os"

	"gpufabric.io/drivers/node/tmpfs"
)

// files is how many files a container may have in one of its directories. The limiter has two.
const files = 128

// open makes a directory to which a container's user, whoever it is, may write.
func (l Limiter) open(path string) error {
	const mode = os.ModeSticky | 0o777
	if l.Bytes > 0 {
		if err := tmpfs.Make(path, mode, tmpfs.Bounds{Bytes: l.Bytes, Files: files}); err != nil {
			return fmt.Errorf("make the limiter's directory: %w; --limiter-size=0 does without a bound", err)
		}
		return nil
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make the limiter's directory: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("open the limiter's directory to the container: %w", err)
	}
	return nil
}
