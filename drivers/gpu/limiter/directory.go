package limiter

import (
	"fmt"
	"os"

	"gpufabric.io/drivers/node/tmpfs"
)

// mostFiles is how many files containers may have in a directory of theirs. The library has one.
const mostFiles = 128

// LeastBytes is the least capacity of a directory: the region for monitors takes 2 MB.
const LeastBytes = 4 << 20

// MakeDirectory makes a directory on the node to which containers' users with any ID may write: this many bytes, in a file system of its
// own; 0: unlimited. An existing one stays as it is.
func MakeDirectory(path string, bytes int64) error {
	const mode = os.ModeSticky | 0o777
	if bytes > 0 {
		// Containers may have one that was made without a bound. A mount on it would split them.
		if info, err := os.Lstat(path); err == nil && info.IsDir() && info.Mode().Perm() == mode.Perm() {
			return nil
		}
		if err := tmpfs.Make(path, mode, tmpfs.Bounds{Bytes: bytes, Files: mostFiles}); err != nil {
			return fmt.Errorf("make the limiter's directory: %w; --limiter-size=0 makes it without a size limit", err)
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
